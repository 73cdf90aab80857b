"""What a rank does more than its peers by design is information; what begins later, or stays with a node, a warning."""

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.controller.shell.extras import LENIENT, Extras, Judged
from holdfast.diagnostics.blame.blame import Blame, analyse
from holdfast.diagnostics.blame.model import Limits
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire import types as t

AB, BA = (JobShape("j1", "train", nodes, 2) for nodes in (("a", "b"), ("b", "a")))
SIXTY_MS = 12.0
"""Times 5 ms, what the optimizer takes: as much more as rank 0 might log in every step."""
LOGS = [Culprit(0, "optimizer", SIXTY_MS)]


def look(
    culprits: list[Culprit], seed: int = 1, limits: Limits | None = None, mesh: tuple[int, int, int] = (1, 4, 1)
) -> Blame:
    table, plan = simulate(Job(*mesh, measures_cpu=True), culprits, 20, seed)
    blame = analyse(step_graph.graphs(table, plan, plan.mesh.world), AB, limits)
    assert blame is not None
    return blame


def begun(culprits: list[Culprit], extras: Extras | None = None, generation: int = 1, shape: JobShape = AB) -> Extras:
    """After the first look of an attempt in which these were slow."""
    extras = extras or Extras("j1")
    extras.begin(generation, look(culprits, 7, LENIENT), shape)
    return extras


def judged(extras: Extras, culprits: list[Culprit], shape: JobShape = AB) -> dict[int, Judged]:
    blame = look(culprits)
    return {c.rank: extras.judge(c, blame, shape) for c in blame.culprits}


def test_what_rank_0_does_more_since_the_first_step_is_information() -> None:
    (found,) = judged(begun(LOGS), LOGS).values()
    assert found.severity is t.Severity.INFO
    assert found.why.startswith("for information: since the first steps of the job")


def test_an_extra_that_was_only_just_seen_at_first_is_the_same_extra() -> None:
    """The first look is at few steps: its limits are lower, so that a small extra is known from the start."""
    small = [Culprit(0, "optimizer", 0.5)]
    assert judged(begun(small), small)[0].is_design


@pytest.mark.parametrize(
    ("at_first", "later"),
    [
        ([], LOGS),
        (LOGS, [Culprit(0, "optimizer", 4 * SIXTY_MS)]),
        (LOGS, [*LOGS, Culprit(2, "forward", 0.5)]),
    ],
    ids=["begins later", "grows", "another one becomes slow"],
)
def test_what_becomes_slow_later_is_a_warning(at_first: list[Culprit], later: list[Culprit]) -> None:
    found = judged(begun(at_first), later)
    rank = later[-1].rank
    assert found.pop(rank).severity is t.Severity.WARNING
    assert all(one.is_design for one in found.values())


def test_a_slow_gpu_since_the_first_step_is_a_warning() -> None:
    """Forward and backward alike: no work that a program adds is like that."""
    slow = [Culprit(0, "compute", 0.2)]
    assert not judged(begun(slow), slow)[0].is_design


def test_a_slow_link_is_never_by_design() -> None:
    slow = [Culprit(0, "link", 2.0)]
    blame = look(slow, mesh=(2, 2, 2))
    extras = Extras("j1")
    extras.begin(1, look(slow, 7, LENIENT, (2, 2, 2)), AB)
    assert blame.culprits
    assert not any(extras.judge(c, blame, AB).is_design for c in blame.culprits)


def test_another_rank_is_a_warning_unless_its_place_is_that_of_most_nodes() -> None:
    slow = [Culprit(3, "optimizer", SIXTY_MS)]
    assert not judged(begun(slow), slow)[3].is_design
    # The first local rank of each of eight nodes logs.
    shape = JobShape("j1", "train", tuple("abcdefgh"), 4)
    loggers = [Culprit(rank, "optimizer", SIXTY_MS) for rank in range(0, 32, 4)]
    extras = Extras("j1")
    extras.begin(1, look(loggers, 7, LENIENT, (1, 32, 1)), shape)
    blame = look(loggers, mesh=(1, 32, 1))
    assert len(blame.culprits) == 8
    assert all(extras.judge(c, blame, shape).is_design for c in blame.culprits)


def test_over_restarts_it_stays_information_and_moves_with_its_rank() -> None:
    extras = begun(LOGS)
    assert judged(begun(LOGS, extras, 2), LOGS)[0].is_design
    found = judged(begun(LOGS, extras, 3, BA), LOGS, BA)[0]
    assert found.is_design
    assert "moved with rank 0 from node a to b" in found.why


def test_an_extra_that_stays_with_its_node_is_the_nodes() -> None:
    extras = begun(LOGS)
    there = [Culprit(2, "optimizer", SIXTY_MS)]  # on node a, after the nodes changed places
    found = judged(begun(there, extras, 2, BA), there, BA)[2]
    assert found.severity is t.Severity.WARNING
    assert found.why == "as rank 0 was on it: the slowness stays with node a"


def test_what_a_later_attempt_begins_with_is_a_warning() -> None:
    assert not judged(begun(LOGS, begun([]), 2), LOGS)[0].is_design


def test_where_the_first_steps_were_not_seen_it_is_a_warning() -> None:
    """A controller that came late, and then a restart: it is unknown what rank 0 did before."""
    extras = Extras("j1")
    extras.begin(1, None, AB)
    assert not judged(extras, LOGS)[0].is_design
    assert not judged(begun(LOGS, extras, 2), LOGS)[0].is_design


FLOATS = st.floats(0, 1e6, allow_nan=False)


EXTRA = st.dictionaries(st.integers(0, 99), FLOATS, max_size=4)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EXTRA, EXTRA, st.booleans())
def test_it_comes_back_from_the_journal(first: dict[int, float], life: dict[int, float], looked: bool) -> None:
    extras = Extras("j1", looked, first, ("a", "b"), 3, life, 4)
    back = Extras.from_doc(json.loads(json.dumps(extras.to_doc())))
    assert dataclasses.asdict(back) == dataclasses.asdict(extras)
