"""Dimensions of inputs and outputs, against tensors that are really cut."""

from __future__ import annotations

import random

import numpy as np
import pytest

from holdfast.trainer.graphs.dims import broadcast, kept, reshaped, swapped, without


@pytest.mark.parametrize("seed", range(200))
def test_a_cut_of_what_is_reshaped_is_a_cut_of_what_comes_out(seed: int) -> None:
    """Half of the input along a dimension, reshaped, is half of the output along the other one."""
    rng = random.Random(seed)
    factors = [rng.choice([2, 4, 6]) for _ in range(rng.randint(1, 5))]

    def shape() -> list[int]:
        sizes, rest = [], list(factors)
        while rest:
            take = rng.randint(1, len(rest))
            sizes.append(int(np.prod(rest[:take])))
            rest = rest[take:]
            if rng.random() < 0.3:
                sizes.append(1)
        return sizes

    source, output = shape(), shape()
    values = np.arange(np.prod(factors)).reshape(source)
    found = reshaped(output, source)
    assert len(found) == len(output)
    for out, dim in enumerate(found):
        if dim is None:
            continue
        halves = np.split(values, 2, axis=dim)
        whole = np.split(values.reshape(output), 2, axis=out)
        assert [set(half.flat) for half in halves] == [set(half.flat) for half in whole]
    if source[0] % 2 == 0 and output[0] % 2 == 0:
        assert found[0] == 0, "the outermost dimension stays one"


def test_what_is_known_of_common_operators() -> None:
    assert reshaped((2, 64, 8, 48), (2, 64, 384)) == (0, 1, 2, None)
    assert reshaped((2, 64, 384), (2, 64, 8, 48)) == (0, 1, 2)
    assert reshaped((2, 1, 3), (2, 3)) == (0, None, 1)
    assert swapped(4, 1, 2) == (0, 2, 1, 3)
    assert without(3, -2) == (0, 2)
    assert kept((2, 64, 4), (2, 64, 8)) == (0, 1, None)
    assert broadcast((2, 64, 8), (8,)) == (None, None, 0)
    assert broadcast((2, 64, 8), (64, 1)) == (None, 0, None)
    assert broadcast((2, 64), (3,)) is None
