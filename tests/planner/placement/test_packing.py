"""Orders that fill switches block by block, in work that grows with the nodes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from holdfast.planner.placement.packing import packed
from holdfast.planner.placement.sites import Site, Sites
from holdfast.planner.placement.traffic import Shape


def sites(*paths: str) -> Sites:
    """Each as "nic:pod/switch"."""
    found = []
    for i, path in enumerate(paths):
        nic, _, switch = path.rpartition(":")
        found.append(Site(f"n{i}", switch, switch.rpartition("/")[0], nic))
    return Sites(tuple(found))


def test_the_smallest_switch_that_has_a_block_is_filled_first() -> None:
    """Five stages of two nodes; switches of five, three and two."""
    where = sites(*("p/a",) * 5, *("p/b",) * 3, *("p/c",) * 2)
    by_stage, _ = packed(Shape(5, 2), 1, where, range(10))
    # c has just one, then b is nearer than none and smaller than a, then a has two; what is left of a and b is last.
    assert by_stage == (8, 9, 5, 6, 0, 1, 2, 3, 4, 7)


def test_the_pod_is_filled_before_another_and_the_type_of_nic_before_both() -> None:
    where = sites("x:p/a", "y:p/a", "x:q/c", "x:p/b", "x:q/d", "x:p/a", "x:p/b", "x:q/c", "x:q/d", "y:p/a")
    by_stage, by_replica = packed(Shape(5, 2), 1, where, range(10))
    assert by_stage == (0, 5, 3, 6, 2, 7, 4, 8, 1, 9)
    # Two replicas of five nodes: none but the type of NIC x has five, pod p of it first.
    assert [by_replica[2 * stage] for stage in range(5)] == [0, 5, 3, 6, 2]
    assert sorted(by_replica[2 * stage + 1] for stage in range(5)) == [1, 4, 7, 8, 9]


def test_blocks_larger_than_a_switch_stay_in_a_pod() -> None:
    where = sites(*(f"{'pq'[i % 2]}/{i % 4}" for i in range(16)))
    by_stage, _ = packed(Shape(4, 4), 1, where, range(16))
    assert [len({where.all[one].pod for one in by_stage[i : i + 8]}) for i in (0, 8)] == [1, 1]
    by_stage, _ = packed(Shape(2, 8), 1, where, range(16))
    assert [len({where.all[one].pod for one in by_stage[i : i + 8]}) for i in (0, 8)] == [1, 1]
    assert len({where.all[one].switch for one in by_stage[:4]}) == 1


def test_the_last_block_may_be_smaller() -> None:
    """Stages of 12 ranks on nodes of 8: blocks of two nodes, and one of one."""
    where = sites("p/a", "p/b", "p/a", "p/c", "p/c", "p/b", "p/c", "p/c", "p/c")
    by_stage, *_ = packed(Shape(6, 12), 8, where, range(9))
    assert by_stage == (0, 2, 1, 5, 3, 4, 6, 7, 8)


def test_the_last_block_is_near_the_one_before() -> None:
    where = sites(*("p/a",) * 2, *("p/b",) * 3, *("p/c",) * 5)
    by_stage, *_ = packed(Shape(6, 12), 8, where, range(10))
    assert by_stage == (0, 1, 2, 3, 5, 6, 7, 8, 9)  # b has one left as well, and comes first


def test_what_is_left_of_switches_is_taken_near_the_block_before() -> None:
    where = sites(*(path for path in ("p/a", "p/b", "q/c", "q/d") for _ in range(3)))
    by_stage, _ = packed(Shape(6, 2), 1, where, range(12))
    assert by_stage == (0, 1, 3, 4, 6, 7, 9, 10, 8, 11, 2, 5)


def test_the_fullest_switch_comes_first_in_a_block() -> None:
    (order,) = packed(Shape(1, 4), 1, sites("p/a", "p/b", "p/b", "p/b"), range(4))
    assert order == (1, 2, 3, 0)


def test_too_few_nodes_are_said() -> None:
    with pytest.raises(ValueError, match="5 blocks of 2 nodes of 9"):
        list(packed(Shape(5, 2), 1, sites(*("a",) * 9), range(9)))


@pytest.mark.parametrize("under", [1, 32], ids=["a switch each", "32 under a switch"])
@pytest.mark.parametrize("dp", [1, 2], ids=["blocks of one", "blocks of two"])
def test_twice_the_nodes_are_twice_the_work(under: int, dp: int) -> None:
    """Counted in calls, which do not depend on the machine: stages of one node made it four times before."""

    def work(count: int) -> int:
        where, calls = sites(*(f"p{i // 128}/s{i // under}" for i in range(count))), 0

        def counted(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            list(packed(Shape(count // dp, dp, 8), 8, where, range(count)))
        finally:
            sys.setprofile(before)
        return calls

    assert work(1024) <= 2.2 * work(512)
