"""The account of a step adds up, whatever the spans are, and what it says of made-up steps is true of them."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.blame.account import AccountBook, JobAccount
from holdfast.diagnostics.blame.account_text import entries
from holdfast.diagnostics.blame.blame import Blame, analyse
from holdfast.diagnostics.blame.model import Culprit, Limits, Slowness
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Variant, measured
from holdfast.diagnostics.steps.span_table import SpanTable
from tests.diagnostics.blame.made_up_steps import MEETINGS, MadeUp, made_up

EAGER = Limits(ratio=1.0, chance=0.9, z=0.1, least=0.0, between=0.0, moments=0.0, link=1.0, moved=0.0)
"""Names whoever it can: many culprits at once."""
SHAPE = JobShape("j1", "train", ("n0", "n1", "n2"), 2)
PARTS = ("compute_s", "other_s", "communication_s", "imbalance_s", "jitter_s")
COLUMNS = ("compute_s", "other_s", "transfer_s", "jitter_s", "plan_s")


def blame_of(table: SpanTable, world: int, limits: Limits | None = None) -> Blame:
    blame = analyse(step_graph.graphs(table, None, world), SHAPE, limits)
    assume(blame is not None)
    assert blame is not None
    return blame


def world_of(made: MadeUp) -> int:
    return made.took.shape[2]


def total(account: JobAccount) -> float:
    return sum(getattr(account, name) for name in PARTS) + float(account.culprits_s.sum())


@settings(max_examples=40, deadline=None)
@given(made_up(clocks=400_000, missing=True), st.sampled_from([None, EAGER]))
def test_it_adds_up_and_nothing_is_negative(made: MadeUp, limits: Limits | None) -> None:
    blame = blame_of(made.table(), world_of(made), limits)
    account = blame.account
    assert total(account) == pytest.approx(blame.step_s, abs=1e-9)
    assert min([*(getattr(account, name) for name in PARTS), *account.culprits_s.tolist()]) >= 0
    assert [c.cost_s for c in blame.culprits] == pytest.approx(account.culprits_s.tolist()), "cost is the account's"
    parts = blame.parts
    known = np.isfinite(parts.compute_s)
    lengths = sum(getattr(parts, name) for name in COLUMNS) + parts.culprits_s.sum(axis=0)
    own = [np.full(len(blame.ranks), np.nan)]
    for graph in step_graph.graphs(made.table(), None, world_of(made)):
        (column,) = graph.columns
        own.append(column.at[-1] - column.begin)
    np.testing.assert_allclose(lengths[known], np.nanmean(np.stack(own)[:, known], axis=0), atol=1e-9)
    for name in COLUMNS:
        assert (getattr(parts, name)[known] >= 0).all(), name
    assert (parts.culprits_s[:, known] >= 0).all()


@settings(max_examples=40, deadline=None)
@given(made_up(clocks=200_000, tidy=True))
def test_waiting_for_the_last_peer_is_never_transfer(made: MadeUp) -> None:
    blame = blame_of(made.table(), world_of(made))
    meetings = sum(kind in MEETINGS for kind in made.items)
    # A clock that is ahead by d moves an arrival by d; of a meeting below 4 d nothing can be known.
    error = 8e-9 * float(made.offset.max(initial=0)) * meetings + 1e-9
    moved, waited = made.moved.mean(axis=0) * 1e-9, made.waited.mean(axis=0) * 1e-9
    assert (blame.parts.transfer_s <= moved + error).all()
    assert (blame.wait_s >= waited - error).all()


@settings(max_examples=40, deadline=None)
@given(made_up(clocks=100_000, missing=True, tidy=True), st.randoms(use_true_random=False))
def test_the_numbers_of_ranks_mean_nothing(made: MadeUp, random: Random) -> None:
    world = world_of(made)
    order = list(range(world))
    random.shuffle(order)
    table = made.table()
    renamed = replace(table, rank=np.array(order, table.rank.dtype)[table.rank])
    one, other = blame_of(table, world), blame_of(renamed, world)
    for name in ("compute_s", "other_s", "communication_s", "imbalance_s"):
        assert getattr(one.account, name) == pytest.approx(getattr(other.account, name), abs=1e-9)
    for name in ("compute_s", "other_s", "transfer_s", "plan_s"):
        mine = getattr(one.parts, name)
        np.testing.assert_allclose(getattr(other.parts, name)[order], mine, atol=1e-9, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(made_up(steps=1, tidy=True), st.integers(0, 30_000_000), st.data())
def test_a_slower_rank_costs_what_the_longest_way_says_and_no_other_part_moves(
    made: MadeUp, more: int, data: st.DataObject
) -> None:
    works = [n for n, kind in enumerate(made.items) if kind not in MEETINGS]
    assume(works)
    rank, item = data.draw(st.integers(0, world_of(made) - 1)), data.draw(st.sampled_from(works))
    made.took[:, works] = made.took[:, works, :1]  # peers that do the same
    made.table()
    before = made.step_s
    slow = replace(made, took=made.took.copy())
    slow.took[0, item, rank] += more
    (graph,) = step_graph.graphs(slow.table(), None, world_of(made))
    (column,) = graph.columns
    change = np.zeros(len(column.own))
    change[sum(kind in MEETINGS for kind in made.items[:item])] = -more * 1e-9
    accounts = []
    for step, culprits in ((slow, [Variant({0: change}, {}, {0: rank})]), (made, [Variant({}, {}, {})])):
        (graph,) = step_graph.graphs(step.table(), None, world_of(made))
        book = AccountBook(1)
        book.add(graph, measured(graph), culprits)
        accounts.append(book.job(step.step_s))
    with_it, without = accounts
    assert float(with_it.culprits_s[0]) == pytest.approx(slow.step_s - before, abs=1e-9)
    for name in ("communication_s", "imbalance_s", "jitter_s"):
        assert getattr(with_it, name) == pytest.approx(getattr(without, name), abs=1e-9), name
    # What one stretch of own work is spared is spared evenly, be it computation or input.
    own = [account.compute_s + account.other_s for account in accounts]
    assert own[0] == pytest.approx(own[1], abs=1e-9)


def test_the_line_adds_up_and_names_whom_is_waited_for() -> None:
    account = JobAccount(0.7269, 0.4523, 0.0, 0.1102, 0.0, np.array([0.0049]), 0.1595)
    culprit = Culprit(Slowness.COMPUTE, 6, -1, "forward", 1.1, 9.0, 3, 0.006, 0.0049, 0.02, 7)
    shown = entries(account, [culprit])
    assert shown.line == (
        "727 ms = 452 compute + 110 communication that nothing hides + 5 waiting for rank 6 + 160 jitter"
    )
    assert shown.cost(0) == "5 ms"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 3), min_size=7, max_size=7))
def test_printed_figures_add_up(seconds: list[float]) -> None:
    account = JobAccount(sum(seconds), *seconds[:4], np.array(seconds[4:6]), seconds[6])
    link = Culprit(Slowness.LINK, 1, 2, "tp", 1.5, 9.0, 3, 0.1, seconds[4], 0.0, 0)
    rank = Culprit(Slowness.DATA, 3, -1, "load", 1.5, 9.0, 3, 0.1, seconds[5], 0.0, 0)
    plan = Culprit(Slowness.IMBALANCE, -1, -1, "pipeline rank 1", 1.2, 0.0, 1, 0.1, seconds[3], 0.0, 0)
    shown = entries(account, [link, rank, plan])
    printed = [float(entry.figure.replace(",", "")) for entry in shown.entries if entry.figure]
    assert sum(printed) == pytest.approx(float(shown.step.replace(",", "")), abs=1e-6)
    unit = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[shown.unit]
    for entry in shown.entries:
        if entry.figure:
            last = 10.0 ** -len(shown.step.partition(".")[2])
            assert float(entry.figure.replace(",", "")) == pytest.approx(entry.seconds / unit, abs=1.01 * last)


@settings(max_examples=30, deadline=None)
@given(made_up(clocks=100_000, missing=True), st.sampled_from([None, EAGER]))
def test_all_views_have_the_numbers_of_the_account(made: MadeUp, limits: Limits | None) -> None:
    blame = blame_of(made.table(), world_of(made), limits)
    found = blame_report.to_json(blame, SHAPE)
    parts = found["account"]["parts"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(found["step_s"], abs=1e-9)
    for n, culprit in enumerate(found["culprits"]):
        mine = [part for part in parts if part["culprit"] == n]
        assert culprit["cost_s"] == pytest.approx(sum(part["seconds"] for part in mine))
        assert culprit["what_if_s"] == pytest.approx(found["step_s"] - culprit["cost_s"])
        step = f"{found['account']['step']} {found['account']['unit']}"
        assert f"{culprit['cost']} of {step} per step" in culprit["text"]
        for part in mine:
            if part["figure"]:
                assert culprit["cost"] == f"{part['figure']} {found['account']['unit']}"
                assert f"{part['figure']} {part['name']}" in found["account"]["text"]
    noise = sum(part["seconds"] for part in parts if part["kind"] in ("jitter", "waiting"))
    assert found["ideal_s"] == pytest.approx(found["step_s"] - noise, abs=1e-9)
    ranks = found["ranks"]
    for n in range(len(ranks["rank"])):
        if ranks["wait_s"][n] is not None:
            waits = ranks["named_s"][n] + ranks["plan_s"][n] + ranks["jitter_s"][n]
            assert waits == pytest.approx(ranks["wait_s"][n], abs=3e-6)
            assert ranks["work_s"][n] == pytest.approx(ranks["compute_s"][n] + ranks["other_s"][n], abs=3e-6)
