"""What crosses between pipeline ranks of unlike tp: each element once into each host, and once to each rank."""

from __future__ import annotations

import itertools
import math

import pytest

from holdfast.plan.moves.simulate import simulate
from holdfast.trainer.__main__ import parse
from holdfast.trainer.pipeline.crossings import crossing_plan
from holdfast.trainer.settings.layout import TrainerLayout, plan

BATCH, POSITIONS, WIDTH, ITEM = 2, 8, 3, 4
WHOLE = BATCH * POSITIONS * WIDTH


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1), (4, 2), (2, 8), (1, 4), (2, 2)])
@pytest.mark.parametrize("is_sequence", [False, True])
@pytest.mark.parametrize("local", [1, 2, 99])
def test_each_rank_gets_its_part_once(a: int, b: int, is_sequence: bool, local: int) -> None:
    hosts = [rank // local for rank in range(a)] + [100 + rank // local for rank in range(b)]
    found = crossing_plan(range(a), range(a, a + b), (BATCH, POSITIONS, WIDTH), is_sequence, hosts, ITEM)
    got: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in range(a, a + b)}
    for move in found.moves:
        sides = {(message.after < 0, message.source < a) for message in found.messages(move)}
        assert sides <= {(True, True), (False, False)}  # from the other side first, then among those who receive
        cells = list(itertools.product(*(range(s.start, s.stop) for s in move.unit.shard.slices)))
        for message in found.messages(move):
            got[message.target] += cells[message.start : message.stop]
    for rank, elements in got.items():
        share = POSITIONS // b
        first, last = ((rank - a) * share, (rank - a + 1) * share) if is_sequence else (0, POSITIONS)
        assert sorted(elements) == list(itertools.product(range(BATCH), range(first, last), range(WIDTH)))
    receiving = math.ceil(b / local)
    crossed = 1 if is_sequence else b if a == b else receiving
    assert simulate(found, 1.0).crossed_bytes == crossed * WHOLE * ITEM


def test_like_sizes_in_a_list_are_the_plain_layout() -> None:
    argv = ["--pp", "2", "--set", "parallel.stage_tp=[2, 2]"]
    assert plan(parse(argv), 8, 256) == plan(parse(["--pp", "2", "--tp", "2"]), 8, 256)


def test_ranks_have_places_whatever_the_sizes() -> None:
    layout = plan(parse(["--pp", "3", "--set", "parallel.stage_tp=[4, 1, 2]"]), 14, 256)
    assert layout.dp == 2
    assert [layout.rank(*layout.coordinate(rank)) for rank in range(14)] == list(range(14))
    assert layout.line(2, 1) == [12, 13]
    like = TrainerLayout(2, 3, 2, 1, 1)
    assert [like.mesh.coordinate(r) for r in range(12)] == [
        dict(zip(("pp", "dp", "tp"), like.coordinate(r), strict=True)) for r in range(12)
    ]
    assert [like.rank(*like.coordinate(rank)) for rank in range(12)] == list(range(12))
