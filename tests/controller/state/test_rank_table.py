"""The table of all ranks: what a sample changes in it, and what it leaves."""

import math

import numpy as np

from holdfast.controller.state.ranks import RankTable
from holdfast.wire import types as t


def test_meters_stay_until_there_are_new_ones() -> None:
    ranks = RankTable(4)
    assert np.isnan(ranks.mfu).all()
    parts = (0.1, 0.2, 0.3, 0.4, 0.5)
    ranks.update(t.WorkerSample(2, 1, 9, step=5, meters=t.Meters(0.4, 1000.0, parts, 1 << 30)), 1.0)
    ranks.update(t.WorkerSample(2, 1, 9, step=5), 2.0)
    assert (ranks.mfu[2], ranks.memory_bytes[2], tuple(ranks.parts[:, 2])) == (0.4, 1 << 30, parts)
    ranks.update(t.WorkerSample(2, 1, 9, step=6, meters=t.Meters(parts=parts[::-1])), 3.0)
    assert math.isnan(ranks.mfu[2])
    assert tuple(ranks.parts[:, 2]) == parts[::-1]
    assert np.isnan(ranks.parts[:, [0, 1, 3]]).all()
