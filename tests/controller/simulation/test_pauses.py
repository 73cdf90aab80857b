"""Legitimate pauses of a simulated job: every kind is tolerated below its limit, and its end is seen."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.faults import How, SimulatedFault
from holdfast.controller.simulation.hosts import WALL, ClusterShape
from holdfast.controller.simulation.pauses import SHARES, PauseKind, SimulatedPause, Work, draw, draw_kind, wrong_ends
from holdfast.controller.simulation.run import simulate
from holdfast.controller.simulation.world import World
from holdfast.controller.state.events import RestartRequested
from holdfast.controller.state.incidents import Finding, Incident
from holdfast.controller.state.model import Options
from holdfast.wire import types as t

SMALL = ClusterShape(nodes=6, spares=2, gpus=2, per_switch=3, step=2.0, start=5.0, restore=5.0, checkpoint=120.0)
HONEST = [kind for kind in PauseKind if kind is not PauseKind.LONG]
_AT = 300.0


def paused(
    kind: PauseKind,
    seed: int,
    seconds: float = 240.0,
    amid: Callable[[World], None] = lambda world: None,
    options: Options | None = None,
) -> tuple[World, SimulatedPause]:
    """A quiet cluster with one pause, and the pause. `amid` is done some 10 s after its beginning."""
    world = World(SMALL, seed, options)
    breaks = Breaks(world)
    seen: list[SimulatedPause] = []

    def strike() -> None:
        breaks.pause(world.job_hosts()[seed % SMALL.nodes], kind, random.Random(seed))
        if kind is PauseKind.START:
            breaks.strike(SimulatedFault(_AT, "test", How.BUG, 0.4, seed))

    def look() -> None:
        if world.paused is not None and world.paused not in seen:
            seen.append(world.paused)
            world.later(10.0, amid, world)
        if world.now < world.began + _AT + seconds:
            world.later(1.0, look)

    world.later(_AT, strike)
    world.later(_AT + 1.0, look)
    world.run(world.began + _AT + seconds)
    (pause,) = seen
    return world, pause


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_pause_of_any_kind_is_left_alone(kind: PauseKind, seed: int) -> None:
    world, pause = paused(kind, seed)
    assert (pause.kind, world.paused, world.wronged) == (kind, None, [])
    kinds = [incident.cause.kind for incident in world.brain.c.book.incidents.values()]
    assert kinds == ([t.FindingKind.WORKER_EXCEPTION] if kind is PauseKind.START else [])
    assert world.job is not None
    assert world.job.generation == (2 if kind is PauseKind.START else 1)
    assert world.done > (_AT + 60) / SMALL.step


def blind(world: World) -> None:
    world.works = False


@pytest.mark.parametrize("kind", [PauseKind.BUSY, PauseKind.IO, PauseKind.IDLE, PauseKind.START])
def test_a_controller_that_sees_no_progress_in_it_is_seen_to_end_it(kind: PauseKind) -> None:
    seed = next(n for n in range(20) if not drawn(kind, n).is_everybody and drawn(kind, n).until > 20.0)
    world, pause = paused(kind, seed, amid=blind)
    assert world.wronged
    assert world.wronged[0].startswith(f"{pause.kind} pause: no progress for ")
    assert f" rank {pause.rank}: a C call holds the interpreter's lock" in world.wronged[0]


def restart(world: World) -> None:
    world.feed(RestartRequested())


@pytest.mark.parametrize("kind", HONEST)
def test_a_restart_in_a_pause_is_counted_whatever_it_is_for(kind: PauseKind) -> None:
    seed = next(n for n in range(20) if drawn(kind, n).until > 30.0)
    world, pause = paused(kind, seed, amid=restart)
    assert world.wronged == [f"{kind} pause: generation {pause.generation} was restarted as {pause.generation + 1}"]


@pytest.mark.parametrize("work", [Work.WAITS, Work.COMPUTES])
def test_one_that_is_longer_than_its_limit_is_ended_there_and_that_is_right(work: Work) -> None:
    options = Options(pause_limit=300.0)
    limit = options.idle_limit if work is Work.WAITS else options.pause_limit
    seed = next(n for n in range(40) if drawn(PauseKind.LONG, n).work is work)
    world, pause = paused(PauseKind.LONG, seed, seconds=limit + 160.0, options=options)
    assert pause.honest_until == pytest.approx(pause.since + limit)
    (ended,) = [i for i in world.brain.c.book.incidents.values() if i.cause.kind is t.FindingKind.WORKER_HANG]
    assert limit < ended.opened - WALL - pause.since < limit + 2.0
    assert (world.wronged, world.paused) == ([], None)
    assert world.life is not None
    assert not world.evicted


def drawn(kind: PauseKind, seed: int, options: Options | None = None) -> SimulatedPause:
    """As `paused` draws it, at the instant 0."""
    return draw(kind, "n0", 3, 0.0, 1, 6, options or Options(), random.Random(seed))


def test_what_is_drawn_as_honest_stays_below_its_limit() -> None:
    options = Options(idle_limit=20.0, idle_limit_start=40.0, pause_limit=50.0)
    limits = {(Work.WAITS, False): 20.0, (Work.WAITS, True): 40.0}
    for kind in HONEST:
        found = [drawn(kind, seed, options) for seed in range(200)]
        assert all(pause.until < limits.get((pause.work, pause.is_start), 50.0) for pause in found)
        assert all(pause.is_start == (kind is PauseKind.START) for pause in found)
    long = [drawn(PauseKind.LONG, seed, options) for seed in range(200)]
    assert all(pause.until > pause.honest_until for pause in long)
    assert {pause.work for pause in long} == {Work.WAITS, Work.COMPUTES}


def test_all_kinds_come_and_long_ones_are_rare() -> None:
    rng = random.Random(1)
    counts = Counter(draw_kind(rng) for _ in range(2000))
    assert counts.keys() == set(PauseKind)
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert counts[PauseKind.LONG] < 0.1 * counts.total()
    found = simulate(SMALL, 4, days=0.15, rate=2_000.0, hurry=6_000.0)
    assert len(found.pauses) >= 4
    assert (found.wrong_ends, found.wrong_evictions) == (0, 0)


# --- what counts as a wrong end

_PAUSE = drawn(PauseKind.BUSY, 1)._replace(since=100.0, until=130.0, honest_until=130.0)
_RESTARTED = "busy pause: generation 1 was restarted as 2"


def hang(at: float, subject: str, kind: t.FindingKind = t.FindingKind.WORKER_HANG) -> Incident:
    other = Finding(t.FindingKind.NODE_SILENT, t.Severity.WARNING, "n1", "", at - 2, WALL + at - 2)
    found = Finding(kind, t.Severity.CRITICAL, subject, f"{subject} hangs", at, WALL + at)
    return Incident("i1", WALL + at, [other, found])


@pytest.mark.parametrize(
    ("incident", "generation", "nodes", "struck", "expected"),
    [
        (hang(120.0, "rank3"), 1, 6, math.inf, ["busy pause: rank3 hangs"]),
        (hang(120.0, "rank0"), 2, 6, math.inf, ["busy pause: rank0 hangs"]),  # of a rank that only waits
        (hang(120.0, "job"), 2, 6, math.inf, ["busy pause: job hangs"]),
        (hang(99.0, "rank3"), 1, 6, math.inf, []),
        (hang(131.0, "rank3"), 1, 6, math.inf, []),
        (hang(120.0, "rank3"), 2, 6, 115.0, []),  # a real hang in the pause
        (hang(110.0, "rank3"), 2, 6, 115.0, ["busy pause: rank3 hangs"]),
        (hang(120.0, "rank3", t.FindingKind.WORKER_PAUSED), 1, 6, math.inf, []),
        (hang(120.0, "n1", t.FindingKind.TRAFFIC_STOPPED), 2, 6, math.inf, [_RESTARTED]),
        (hang(99.0, "rank3"), 2, 7, math.inf, []),  # it has grown
        (hang(99.0, "rank3"), 2, 5, math.inf, [_RESTARTED]),
    ],
)  # fmt: skip
def test_any_verdict_on_a_hang_and_any_restart_below_the_limit_is_wrong(
    incident: Incident, generation: int, nodes: int, struck: float, expected: list[str]
) -> None:
    assert wrong_ends(_PAUSE, [incident], generation, nodes, WALL, struck) == expected
