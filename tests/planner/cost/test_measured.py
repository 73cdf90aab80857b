"""Profiles: lines through measured points, files, and what a file must have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import Line, PartTimes, Profile, ProfileError, fit, key, read, write

TIMES = {name: PartTimes(0.1, 0.2, 0.05) for name in ("first", "layer", "last")}
ONE = Profile({"width": 64}, "float32", 2, "cpu", {"tp=1": TIMES, "tp=2 sequence": TIMES}, 1e-9,
              {"all_reduce": {2: Line(1e-4, 1e-9), 8: Line(4e-4, 3e-9)}}, 8, 2)  # fmt: skip


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-8))
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    found = fit([(size, alpha + size * beta) for size in (1e3, 1e5, 1e6, 1e7)])
    assert found.alpha == pytest.approx(alpha, rel=1e-3)
    assert found.beta == pytest.approx(beta, rel=1e-3)


def test_no_part_of_a_line_is_negative() -> None:
    assert fit([(1e6, 1e-3)]) == Line(0.0, 1e-9)
    assert fit([(1e3, 2e-3), (1e6, 1e-3)]).beta == 0  # faster for more bytes: noise
    falling = fit([(1e6, 1e-4), (2e6, 4e-4)])  # through zero
    assert falling.alpha == 0
    assert falling.beta == pytest.approx((1e6 / 1e-4 + 2e6 / 4e-4) / (1e6**2 / 1e-8 + 4e12 / 16e-8))
    for points in ([], [(0.0, 1.0)], [(1.0, 0.0)]):
        with pytest.raises(ProfileError, match="one measured"):
            fit(points)


def test_a_file_and_back() -> None:
    assert read(write(ONE)) == ONE


def test_times_are_those_of_the_layout() -> None:
    model = Transformer(2, 64, 4, 128, 32)
    found = ONE.applied(parts(model, Layout(micro_batch_size=2), Precision()), Layout(micro_batch_size=2))
    assert (found.layer.t_f, found.last.t_b, found.layer.t_again) == (0.1, 0.2, 0.05)
    with pytest.raises(
        ProfileError, match="the profile has no tp=2: it has tp=1, tp=2 sequence; measure it with --tps"
    ):
        ONE.applied(found, Layout(tp=2, micro_batch_size=2))
    with pytest.raises(ProfileError, match="micro_batch_size 2, the layout has 1"):
        ONE.applied(found, Layout())
    assert key(2, True) == "tp=2 sequence"


def test_links_of_the_nearest_size() -> None:
    assert ONE.seconds(Collective.ALL_REDUCE, 2, 1e6) == pytest.approx(1e-4 + 1e-3)
    assert ONE.seconds(Collective.ALL_REDUCE, 6, 1e6) == pytest.approx(4e-4 + 3e-3)
    assert ONE.seconds(Collective.SEND, 2, 1e6) is None
    # Eight ranks had a quarter of a core each; four have half of one, and two a whole one.
    assert ONE.seconds(Collective.ALL_REDUCE, 2, 1e6, world=4) == pytest.approx((1e-4 + 1e-3) / 2)
    assert ONE.seconds(Collective.ALL_REDUCE, 2, 1e6, world=2) == pytest.approx((1e-4 + 1e-3) / 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{", "["), "is no file of holdfast profile"),
        (('"version": 1', '"version": 9'), "of another version"),
        (('"first"', '"zeroth"'), "of first, layer and last"),
        (('"forward": 0.1', '"forward": -0.1'), "times are numbers of 0 or more"),
        (('"forward": 0.1', '"forward": "soon"'), "times are numbers of 0 or more"),
        (('"dtype"', '"type"'), "is no file of holdfast profile"),
    ],
)
def test_one_line_for_each_error(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        read(write(ONE).replace(*change), "p.json")


@pytest.mark.parametrize(
    ("model", "precision", "cluster", "line"),
    [
        ({"width": 128}, Precision.of("float32"), {"cores": 2}, "a model with width 64, this one has 128"),
        ({}, Precision.of("bfloat16"), {"cores": 2}, "the profile is of float32, and weights have 2 bytes"),
        ({}, Precision.of("float32"), {}, "the profile is of a CPU, and the cluster has A100"),
    ],
)
def test_a_profile_of_something_else_is_refused(
    model: dict[str, int], precision: Precision, cluster: dict[str, int], line: str
) -> None:
    known = replace(parse('gpu = "A100"\nnodes = 1\ngpus_per_node = 8\n'), **cluster)
    shape = replace(Transformer(2, 64, 4, 128, 32), **model)
    with pytest.raises(ProfileError, match=line):
        ONE.check(shape, precision, known)
    ONE.check(Transformer(9, 64, 4, 128, 32), Precision.of("float32"), replace(known, cores=2))
    with pytest.raises(ProfileError, match="the profile is of NVIDIA H100 80GB HBM3, and the cluster has A100"):
        replace(ONE, device="NVIDIA H100 80GB HBM3").check(
            Transformer(9, 64, 4, 128, 32), Precision.of("float32"), known
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"optimizer_s": 1e-09', '"optimizer_s": "x"'),
        ('"optimizer_s": 1e-09', '"optimizer_s": -1'),
        ('"2": {', '"0": {'),
        ('"dtype": "float32"', '"dtype": 3'),
    ],
)
def test_numbers_that_are_none_are_refused(old: str, new: str) -> None:
    text = write(ONE)
    assert old in text
    with pytest.raises(ProfileError, match="is no file of holdfast profile"):
        read(text.replace(old, new))


def test_one_rank_has_the_whole_sequence_either_way() -> None:
    found = parts(Transformer(2, 64, 4, 128, 32), Layout(micro_batch_size=2), Precision())
    only = replace(ONE, parts={"tp=1 sequence": TIMES})
    assert only.applied(found, Layout(micro_batch_size=2)).layer.t_f == 0.1
