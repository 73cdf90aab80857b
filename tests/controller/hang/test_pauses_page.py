"""The table of docs/pauses.md against what decides: every figure, and every option, of every row, in virtual time."""

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config.controller import ControllerConfig
from holdfast.cli.job.run import run
from holdfast.controller.app import _options
from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.hang.pauses import PauseWatch
from holdfast.controller.http.models import JobLimits
from holdfast.controller.state.model import LIMITS, Instant, Job, JobSpec, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.messages import Program
from holdfast.wire.standing import OpenOperation, StallFacts, ThreadSight, ThreadState
from tests.controller.support.virtual import Virtual

PAGE = Path(__file__).parents[3] / "docs" / "pauses.md"
MOVED = 1000.0
"""When all ranks last moved."""
STEPS = [0.3] * 30
WORLD, ODD = 4, 3


@dataclass(frozen=True)
class Row:
    evidence: str
    ended: str
    options: frozenset[str]


def page() -> list[Row]:
    found: list[Row] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != 5 or cells[0] in ("evidence", "---"):
            continue
        ended = found[-1].ended if cells[3].startswith("the same") else cells[3]
        found.append(Row(cells[0], ended, frozenset(re.findall(r"`([^`]+)`", cells[4]))))
    return found


Change = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Scene:
    """Stalled ranks; `odd` is how rank 3 differs, `all` how all ranks differ from waiting for it."""

    row: str
    """Part of its row's evidence."""
    figure: str
    """Part of what its row says of the end ..."""
    seconds: float
    """... which is so many, with default options."""
    odd: Change = field(default_factory=dict)
    all: Change = field(default_factory=dict)
    seen: Change = field(default_factory=dict)
    """What was seen of rank 3 from outside."""
    steps: tuple[float, ...] = tuple(STEPS)
    is_gone: bool = False
    ends_at: float = math.nan
    """When the system call of rank 3 ends by itself, seconds after the last move."""
    thread: ThreadState = ThreadState.OUTSIDE
    """What the main thread of rank 3 does."""
    holder: str = ""


WORLD_GROUP = t.GroupCount("world", 7, f"0-{WORLD - 1}", 5, is_exact=True)
WAITS: Change = {"operation": "all_reduce", "pending": t.PendingCollective("all_reduce", 0, 4, True, (WORLD_GROUP,))}
BEHIND = dataclasses.replace(WORLD_GROUP, begun=4)
OUTSIDE: Change = {"operation": "", "pending": t.PendingCollective("", -1, -1, False, (BEHIND,))}
OTHER: Change = {"operation": "broadcast", "pending": t.PendingCollective("broadcast", 0, 4, True, (WORLD_GROUP,))}
SILENT: Change = OUTSIDE | {"tick_age": math.nan}  # since the last move
STOPPED: Change = SILENT | {"stopped": True}
SETUP: Change = {"phase": t.Phase.SETUP, "step": -1}
MOVES: Change = {"state": "R", "quiet": 0.0, "cpu": 1.0}

LOCK, FAR = ThreadState.OWN, ThreadState.TIMED

SCENES = [
    Scene("a proof", "2 median steps + 0.75 s", 1.35, OUTSIDE, thread=LOCK),
    Scene("a proof", "1.55 s until three steps are known", 1.55, OUTSIDE, SETUP, thread=LOCK, steps=()),
    Scene("a proof", "", 1.35, OUTSIDE, thread=LOCK, steps=(*STEPS, 4.0)),
    Scene("a proof", "", 1.35, SILENT, thread=LOCK),
    Scene("a proof", "", 1.35, OUTSIDE, is_gone=True),
    Scene("a proof", "", 1.35, OTHER, thread=LOCK),
    Scene("one process is stopped alone", "2 median steps + 0.38 s", 0.975, STOPPED, seen={"state": "T"}),
    Scene("one process is stopped alone", "outside of training 10 s", 10.0, STOPPED, SETUP, {"state": "T"}, steps=()),
    Scene("traced, frozen, or stopped together", "30 min", 1800.0, STOPPED, seen={"state": "t"}, holder="gdb (pid 7)"),
    Scene("all ranks are in the same operation", "3 min", 180.0),
    Scene("processor time, bytes, file positions", "30 min", 1800.0, OUTSIDE, seen=MOVES),
    Scene("at the prompt", "30 min", 1800.0, OUTSIDE, seen={"is_prompt": True}),
    Scene("no activity: asleep", "60 s", 60.0, OUTSIDE),
    Scene("the same before the first step", "5 min", 300.0, OUTSIDE, SETUP, steps=()),
    Scene("the same before the first step", "5 min", 300.0, OUTSIDE, {"phase": t.Phase.EVAL}),
    Scene("2 s whose deadline", "60 s after that", 1060.0, OUTSIDE, ends_at=1000.0, thread=FAR),
    Scene("2 s whose deadline", "60 s after that", 100.0, OUTSIDE, ends_at=40.0, thread=FAR),
    Scene("the agent lacks permission", "30 min", 1800.0, OUTSIDE, seen={"state": ""}),
]  # fmt: skip


def instants() -> Iterator[float]:
    """Seconds since the last move, in steps that grow with it: a limit is as exact as it is long."""
    still = 0.05
    while still < 5000:
        yield still
        still += max(0.05, 0.04 * still)


def ranks(scene: Scene, still: float, more: Change) -> RankTable:
    table = RankTable(WORLD)
    for rank in range(WORLD):
        is_odd = rank == ODD
        activity = t.Activity(still, still, "S", waits_for="a lock", ends_in=scene.ends_at - still if is_odd else t.NAN)
        activity = dataclasses.replace(activity, **(scene.seen if is_odd else {}))
        values: Change = {"step": 9, "phase": t.Phase.TRAIN, "tick_age": 0.05}
        values |= WAITS | scene.all | (scene.odd if is_odd else {}) | more
        values["tick_age"] = still if math.isnan(values["tick_age"]) else values["tick_age"]
        values["standing"] = standing(scene, values["pending"], is_odd, still)
        table.mark(rank, RankState.RUNNING)
        sample = t.WorkerSample(rank, 1, 1, progress_age=still, still_age=still, activity=activity, **values)
        table.update(sample, MOVED + still)
    if scene.is_gone:
        table.mark(ODD, RankState.DONE)
    return table


def standing(scene: Scene, pending: t.PendingCollective, is_odd: bool, still: float) -> StallFacts:
    """What the agent reports of its threads: it is in the operation that `pending` names, or what the scene says."""
    if pending.group >= 0:
        one = OpenOperation(
            1, pending.kind, pending.group, pending.number, root=0 if pending.kind == "broadcast" else -1
        )
        return StallFacts((ThreadSight(1, ThreadState.OWN, still, words="a lock"),), (one,), True)
    state = ThreadState.HELD if is_odd and scene.seen.get("state") in ("T", "t") else scene.thread
    thread = ThreadSight(1, state, still, scene.ends_at - still if is_odd else t.NAN, "a lock")
    return StallFacts((thread,), is_complete=True, holder=scene.holder if is_odd else "")


@functools.lru_cache(maxsize=400)  # the looks at one scene, which are the same whatever the options are
def seen(scene: Scene, still: float) -> RankTable:
    return ranks(scene, still, {})


def verdict_at(scene: Scene, options: Options, more: Change | None = None) -> float:
    """Seconds from the last move to the verdict."""
    detector, watch = HangDetector(options), PauseWatch()
    job = Job(JobSpec("j1", "job", Program("train.py"), 1, WORLD), generation=1, nodes=["node0"])
    for still in instants():
        table, now = ranks(scene, still, more) if more else seen(scene, still), Instant(MOVED + still, MOVED + still)
        if detector.observe(table, 1, list(scene.steps), now):
            return still
        has_stepped = bool((table.step >= 0).any())
        if watch.look(detector.pause, "train.py:8 main", job, options, has_stepped, now).end is not None:
            return still
    raise AssertionError("no verdict at all")


def flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def changing(scene: Scene) -> set[str]:
    """What changes when the verdict falls."""
    usual, found = verdict_at(scene, Options()), set()
    for option in LIMITS:
        other = (dataclasses.replace(Options(), **{option: getattr(Options(), option) * by}) for by in (0.5, 2.0))
        if any(verdict_at(scene, options) != usual for options in other):
            found.add(flag(option))
    return found


def test_every_scene_is_one_row_and_every_row_has_a_scene() -> None:
    rows = page()
    for scene in SCENES:
        assert len([row for row in rows if scene.row in row.evidence]) == 1, scene.row
    assert [row.evidence for row in rows if not any(scene.row in row.evidence for scene in SCENES)] == []
    assert all(row.options for row in rows)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.row}, {scene.figure}")
def test_the_verdict_falls_when_the_page_says(scene: Scene) -> None:
    (row,) = (row for row in page() if scene.row in row.evidence)
    assert scene.figure in row.ended
    found = verdict_at(scene, Options())
    assert scene.seconds - 1e-9 <= found <= 1.05 * scene.seconds + 0.06


@pytest.mark.parametrize("row", page(), ids=lambda row: row.evidence)
def test_the_options_of_a_row_are_those_that_change_when_the_verdict_falls(row: Row) -> None:
    scenes = [scene for scene in SCENES if scene.row in row.evidence]
    assert set().union(*map(changing, scenes)) == row.options


def test_an_idle_wait_with_a_deadline_beyond_the_pause_limit_is_ended_as_any_other() -> None:
    scene = Scene("", "", 0.0, OUTSIDE, ends_at=2000.0)
    assert verdict_at(scene, Options()) == pytest.approx(60.0, rel=0.05)


@pytest.mark.parametrize(("steps", "floor", "seconds"), [(2.0, 0.75, 1.35), (10.0, 0.75, 3.75), (2.0, 20.0, 20.6)])
def test_a_pause_is_reported_as_early_however_late_the_verdict_is(steps: float, floor: float, seconds: float) -> None:
    scene = Scene("", "", 0.0, OUTSIDE, thread=LOCK)
    options = dataclasses.replace(Options(), hang_steps=steps, hang_floor=floor)
    assert verdict_at(scene, options) == pytest.approx(seconds, rel=0.05, abs=0.06)
    detector = HangDetector(options)
    found = detector.observe(ranks(scene, 1.9, {}), 1, STEPS, Instant(MOVED + 1.9, MOVED + 1.9))
    assert bool(found) is (seconds < 1.9)
    assert (detector.pause is not None) is (seconds > 1.9)


def test_a_short_limit_ends_nothing_before_it_is_reported() -> None:
    scene = Scene("", "", 0.0, OUTSIDE)
    assert verdict_at(scene, dataclasses.replace(Options(), idle_limit=0.1)) == pytest.approx(2.0, abs=0.06)


# --- the same options everywhere -------------------------------------------------------------------------------


def test_every_limit_is_an_option_of_run_of_the_api_and_of_the_controller() -> None:
    assert set(JobLimits.model_fields) == set(LIMITS)
    assert set(inspect.signature(run).parameters) >= set(LIMITS)
    config = ControllerConfig(**dict.fromkeys(LIMITS, 7.0))  # type: ignore[arg-type]
    options = _options(config)
    assert {name: getattr(options, name) for name in LIMITS} == dict.fromkeys(LIMITS, 7.0)
    for name in LIMITS:
        assert getattr(ControllerConfig(), name) == getattr(Options(), name)


@pytest.mark.parametrize("option", LIMITS)
def test_every_limit_of_a_job_reaches_what_decides(option: str) -> None:
    v = Virtual()
    v.submit(limits={option: 7.0})
    v.run(1.0)
    assert v.brain.jobs.newest.hangs.detector.options == dataclasses.replace(Options(), **{option: 7.0})
