"""What the cases of `pauses.py` are held to, what is wrong with one, and the table of both sides. Pure.

A hang has an expected liveness. One that cannot end by itself (dead) must be named within 2 s. One that may (idle) must
be reported within 3 s and ended at its limit. A dead one that is judged idle is wrong, even where the rank is right.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Json = dict[str, Any]
Row = tuple[object, ...]

DEAD_S, REPORTED_S = 2.0, 3.0
"""From the hang to the incident, and to the report."""
LATE_S = 3.0
"""After its limit, in which an idle one must have been ended."""
IDLE_LIMIT_S, IDLE_LIMIT_START_S = 60.0, 300.0
"""`--idle-limit` and `--idle-limit-start` as they are by default."""

DEAD = ("stop", "native-sleep", "broadcast", "receive", "all-gather", "barrier", "new-group", "order", "skip-barrier",
        "skip-all-gather", "skip-broadcast", "skip-gather", "circle", "lock-twice", "empty-queue",
        "endless-thread")  # fmt: skip
IDLE = (
    "empty-pipe",
    "quiet-socket",
    "sleep-loop",
    "file-lock",
    "endless-child",
    "full-pipe",
    "cut-off",
    "size",
    "one-long-sleep",
)
RANKS = {kind: (0, 1, 2) for kind in ("stop", "native-sleep", "receive", "barrier", "lock-twice")} | {
    "broadcast": (1, 2), "skip-broadcast": (1, 2), "empty-pipe": (2,), "sleep-loop": (0, 1),
}  # fmt: skip
"""What rank 0 broadcasts may end without the others."""
WITHOUT_RANK = {"order": "rank1", "circle": "job"}
"""Kinds in which all ranks take part, and which are to be named."""
SLOWER = {"first:stop": 12.0}
"""Seconds for dead ones that have longer by design (docs/pauses.md): one that is stopped before the first step."""
LIMITS = {"cut-off": 180.0}
"""Seconds of idle ones that have a limit of their own: where every rank is inside, the time is the network's."""
FIRST = ("first:stop@1", "first:native-sleep@1", "first:barrier@1", "first:skip-barrier@1", "first:quiet-socket@1",
         "start:one-long-sleep@1")  # fmt: skip
"""Before the first step, and before the ranks have met."""


@dataclass(frozen=True, slots=True)
class Expected:
    life: str
    named: str
    found_s: float
    """Of a dead one: until the incident."""
    limit_s: float = math.nan
    """Of an idle one: when it is ended."""


def hang_cases() -> list[str]:
    alone = [f"{kind}@{rank}" for kind in (*DEAD, *IDLE) if kind not in WITHOUT_RANK for rank in RANKS.get(kind, (1,))]
    return [*alone, *WITHOUT_RANK, *FIRST]


def expected(case: str) -> Expected:
    """KeyError for a kind that is neither dead nor idle."""
    kind, _, rank = case.partition("@")
    where, _, bare = kind.rpartition(":")
    # A link that loses everything speaks against no process.
    named = "job" if bare == "cut-off" else WITHOUT_RANK.get(bare, f"rank{rank}")
    if bare in DEAD:
        return Expected("dead", named, SLOWER.get(kind, DEAD_S))
    if bare in IDLE:
        usual = IDLE_LIMIT_START_S if where else IDLE_LIMIT_S
        return Expected("idle", named, math.nan, LIMITS.get(bare, usual))
    raise KeyError(f"{case}: neither dead nor idle")


def wrong_honest(found: Json) -> list[str]:
    """What is wrong with how an honest script went under Holdfast."""
    wrong = [] if found["state"] == "finished" else [f"the job is {found['state']}"]
    if found["restarts"]:
        wrong.append(f"{found['restarts']} restarts")
    return wrong + [f"incident: {text}" for text in found["incidents"]]


def wrong_hang(found: Json) -> list[str]:
    """What is wrong with how a hang went: which ranks were named, as what, how soon, and whether the job went on."""
    wanted = expected(found["case"])
    wrong = [] if found["state"] == "finished" else [f"the job is {found['state']}"]
    if found["named"] != wanted.named:
        wrong.append(f"named {found['named'] or 'nobody'}, not {wanted.named}")
    if found["life"] != wanted.life:
        wrong.append(f"judged {found['life'] or 'nothing'}, not {wanted.life}")
    if found["incidents"] > 1:
        wrong.append(f"{found['incidents']} incidents")
    if wanted.life == "dead" and not found["seconds"] <= wanted.found_s:
        wrong.append(f"found after {found['seconds']:.2f} s, not within {wanted.found_s:g} s")
    if wanted.life == "idle":
        reported = math.nan if found["reported_s"] is None else found["reported_s"]
        if not reported <= REPORTED_S:
            wrong.append(f"reported after {reported:.2f} s, not within {REPORTED_S:g} s")
        if not wanted.limit_s - 1.0 <= found["seconds"] <= wanted.limit_s + LATE_S:
            wrong.append(f"ended after {found['seconds']:.1f} s, not at {wanted.limit_s:g} s")
    return wrong


CASE_HEAD = ("case", "expected", "holdfast", "seconds", "right", "torchrun", "seconds", "right")
SUM_HEAD = ("what", "count", "holdfast: right", "median, s", "longest, s", "torchrun: right")


def case_rows(found: Iterable[Json]) -> list[Row]:
    """One row a case, Holdfast and torchrun beside each other."""
    rows: list[Row] = []
    for one in found:
        ours, theirs = one.get("holdfast"), one.get("torchrun")
        row: list[object] = [one["case"], _expectation(one)]
        row += ["", "", ""] if ours is None else [_how(one), ours["seconds"], _yes(not ours["wrong"])]
        row += ["", "", ""] if theirs is None else [_how_theirs(theirs), theirs["seconds"], _yes(theirs["is_right"])]
        rows.append(tuple(row))
    return rows


def _expectation(one: Json) -> str:
    if one["set"] == "honest":
        return "ends with 0"
    wanted = expected(one["case"])
    return f"{wanted.life}, {wanted.named}"


def _how(one: Json) -> str:
    ours = one["holdfast"]
    if ours["wrong"]:
        return "; ".join(ours["wrong"])[:100]
    return "ends with 0" if one["set"] == "honest" else f"{ours['life']}, {ours['named']}"


def _how_theirs(theirs: Json) -> str:
    return "stands still" if theirs["code"] is None else f"ends with {theirs['code']}"


def _yes(is_right: bool) -> str:
    return "yes" if is_right else "NO"


def groups(found: Iterable[Json]) -> dict[str, list[Json]]:
    """Cases by what the goal for them is."""
    made: dict[str, list[Json]] = {}
    for one in found:
        made.setdefault(_group(one), []).append(one)
    return made


def _group(one: Json) -> str:
    if one["set"] == "honest":
        return "honest pauses: left alone"
    wanted = expected(one["case"])
    if wanted.life == "dead":
        return "dead: named within 2 s" if wanted.found_s == DEAD_S else "dead, with longer limits: named within them"
    start = ", before the first step" if wanted.limit_s == IDLE_LIMIT_START_S else ""
    return f"idle{start}: reported within 3 s, ended at {wanted.limit_s:g} s"


def sum_rows(found: Sequence[Json]) -> list[Row]:
    """One row a goal. Times: until the incident of dead ones, the report of idle ones."""
    rows: list[Row] = []
    for name, some in groups(found).items():
        ours = [one["holdfast"] for one in some if one.get("holdfast")]
        theirs = [one["torchrun"] for one in some if one.get("torchrun")]
        key = {"dead": "seconds", "idle": "reported_s"}.get(name[:4])
        times = [one[key] for one in ours if key and not one["wrong"]]
        rows.append((
            name, len(some), f"{sum(not one['wrong'] for one in ours)} of {len(ours)}",
            float(median(times)) if times else "-", float(max(times)) if times else "-",
            f"{sum(one['is_right'] for one in theirs)} of {len(theirs)}" if theirs else "not run",
        ))  # fmt: skip
    return rows
