"""Roles of partial backwards, against the sections of a model that are counted by hand (SPB)."""

from __future__ import annotations

import pytest

from holdfast.trainer.optim.contributions import Contributions


def test_sections_of_seven_layers_in_three() -> None:
    """Section q begins at layer L - floor(L q / k): 7 - 2 = 5, 7 - 4 = 3, 0."""
    three = Contributions(parts=3, replicas=6, layers=7)
    assert [three.section_of(f"layers.{n}.mlp.weight") for n in range(7)] == [3, 3, 3, 2, 2, 1, 1]
    others = ("embed.weight", "positions.weight", "head.norm.weight", "head.weight")
    assert [three.section_of(name) for name in others] == [3, 3, 1, 1]
    assert [three.without_way_back(replica, 0) for replica in range(6)] == [5, 3, 0, 5, 3, 0]
    # The way back is 2, 4 and 7 of 7 layers.
    assert three.share() == pytest.approx((2 + 4 + 7) / 3 / 7)


def test_roles_rotate_with_the_step() -> None:
    three = Contributions(3, 6, 7)
    assert [three.role(replica, 0) for replica in range(6)] == [1, 2, 3, 1, 2, 3]
    assert [three.role(replica, 1) for replica in range(6)] == [2, 3, 1, 2, 3, 1]
    assert [three.role(0, step) for step in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_who_has_gradients_of_a_section_and_who_sends_their_mean() -> None:
    """In step 0 replicas 2 and 5 go back through everything, 1 and 4 through two sections, 0 and 3 through one."""
    three = Contributions(3, 6, 7)
    assert [three.contributors(q, 0) for q in (1, 2, 3)] == [(0, 1, 2, 3, 4, 5), (1, 2, 4, 5), (2, 5)]
    assert [three.receivers(q, 0) for q in (1, 2, 3)] == [{}, {0: 1, 3: 2}, {0: 2, 1: 5, 3: 2, 4: 5}]
    assert three.contributors(3, 1) == (1, 4)
    alone = Contributions(1, 4, 7)
    assert (alone.contributors(1, 3), alone.receivers(1, 3), alone.share()) == ((0, 1, 2, 3), {}, 1.0)
    assert [alone.without_way_back(replica, 3) for replica in range(4)] == [0] * 4
