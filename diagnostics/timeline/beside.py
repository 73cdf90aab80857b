"""A measured step beside its prediction, as data that can be sent and shown: numbers, lanes, and who was late. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from holdfast.base.errors import NotFound
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.diagnostics.timeline.action_times import ActionTimes, action_times
from holdfast.diagnostics.timeline.lateness import Cause, Late, lateness
from holdfast.diagnostics.timeline.predicted import Prediction, predict
from holdfast.diagnostics.timeline.step_actions import TIMED, StepActions, step_actions
from holdfast.plan.plan import COMPUTE, RECEIVES, SENDS, SPANS, Action, Op, Plan

Json = dict[str, Any]

DRAWN = COMPUTE | {Op.REDUCE_GRAD}
"""What lanes show: computations and sums."""
SHOWN_S = 5e-5
"""A delay below this is none: texts give tenths of a millisecond."""
NO_PLAN = "this job has no plan to predict from: only `holdfast train` (holdfast.trainer) reports one"


def beside(
    table: SpanTable,
    shape: JobShape,
    times_from: Callable[[], SpanTable] | None = None,
    ranks: Sequence[int] = (),
) -> Json:
    """The newest step of a table beside its prediction; the answer has the lanes and rows of `ranks` (none: of all).

    `times_from` gives the spans of the step whose medians are the times; None: this step's own. NotFound for a job
    without a plan, for spans that are missing, and for ranks that are not the job's.
    """
    plan = shape.decoded()
    if plan is None:
        raise NotFound("the job's plan is of a newer version than this program" if shape.plan else NO_PLAN)
    seen = _newest(table, plan)
    base = seen if times_from is None else _newest(times_from(), plan)
    times = action_times(base)
    found = predict(seen, times)
    rows = [(g, late) for g, one in enumerate(found) for late in lateness(seen, times, one)]
    wanted = set(ranks) or {late.rank for _, late in rows}
    shown = sorted(((g, late) for g, late in rows if late.rank in wanted), key=lambda row: row[1].rank)
    if not shown:
        raise NotFound(f"no such ranks: the job's plan has ranks 0 to {plan.mesh.world - 1}")
    places = sorted({(g, seen.plan.mesh.coordinate(late.rank).get("pp", 0)) for g, late in shown})
    lane = {place: i for i, place in enumerate(places)}
    return {
        "job": shape.job,
        "name": shape.name,
        "step": seen.step,
        "times_of": base.step,
        "schedule": plan.schedule,
        "own_order": any(one.is_own_order for one in found),
        "zero": seen.zero_ns * 1e-9,
        **_lengths(seen, times, found),
        "text": _headline([late for _, late in rows], seen),
        "ranks": [
            _row(late, seen) | {"lane": lane[g, seen.plan.mesh.coordinate(late.rank).get("pp", 0)]} for g, late in shown
        ],
        "times": list(_times(times)),
        **_columns(seen, found, places),
    }


def _newest(table: SpanTable, plan: Plan) -> StepActions:
    table = table.newest_generation()
    if not len(table):
        raise NotFound("no spans of this step")
    return step_actions(table, plan, int(table.step.max()))


def _lengths(seen: StepActions, times: ActionTimes, found: Sequence[Prediction]) -> Json:
    """Seconds from the first computation to the last computation or sum; and the share without computation."""
    computes = seen.of(COMPUTE)
    measured = float(np.nanmax(seen.end[seen.of(DRAWN)]))
    busy = np.nansum(seen.end[computes] - seen.start[computes])
    owners = np.array([seen.rows[row][0] for row in computes])
    known = ~np.isnan(seen.start[computes])
    present = sum(int(known[owners == rank].any(axis=0).sum()) for rank in range(len(seen.plan.orders)))
    predicted = max(float(one.end[seen.of(DRAWN)].max()) for one in found)
    planned = sum(times.duration(seen.rows[row][1]) for row in computes)
    return {
        "measured_s": measured,
        "predicted_s": predicted,
        "measured_bubble": 1 - float(busy) / (present * measured),
        "predicted_bubble": 1 - planned / (len(seen.plan.orders) * predicted),
    }


def _row(late: Late, seen: StepActions) -> Json:
    if late.row < 0:
        nothing = {"late": "", "late_id": "", "own": "", "own_id": "", "cause": "", "peer": -1}
        return {"rank": late.rank, "late_s": None, "own_s": None, **nothing, "text": "none of its spans is there"}
    worst, own = seen.rows[late.row][1], seen.rows[late.own_row][1]
    return {
        "rank": late.rank,
        "late_s": late.late_s,
        "late": name_of(worst),
        "late_id": worst.id,
        "own_s": late.own_s,
        "own": name_of(own),
        "own_id": own.id,
        "cause": late.cause.value,
        "peer": late.peer,
        "text": own_text(late, own),
    }


def name_of(action: Action) -> str:
    """In words: "backward of micro-batch 3 on stage 2"."""
    kind = SPANS[action.op].replace("_", " ")
    if action.micro_batch < 0:
        return f"{kind} of stage {action.stage}"
    many = "+".join(map(str, action.micro_batches))
    which = f" part {action.turn}" if action.parts > 1 else ""
    return f"{kind} of micro-batch {many}{which} on stage {action.stage}"


def own_text(late: Late, action: Action) -> str:
    """The largest delay that began on a rank, in words."""
    what, ms = name_of(action), f"{late.own_s * 1e3:.1f} ms"
    if late.own_s < SHOWN_S:
        return "no delay began here"
    if late.cause is Cause.MESSAGE:
        return f"{what} waited {ms} longer than predicted for its message from rank {late.peer}"
    if late.cause is Cause.IDLE:
        return f"{what} ended {ms} late: what it needs was there, and its rank did or awaited something else"
    return f"{what} took {ms} longer than predicted"


def _headline(rows: Sequence[Late], seen: StepActions) -> str:
    """The rank with the largest delay of its own, and how many came late after it."""
    known = [late for late in rows if late.row >= 0]
    worst = max(known, key=lambda late: late.own_s)
    if worst.own_s < SHOWN_S:
        return "no action came later than predicted"
    half = worst.own_s / 2
    others = sum(late is not worst and late.late_s >= half > late.own_s for late in known)
    text = f"rank {worst.rank}: {own_text(worst, seen.rows[worst.own_row][1])}"
    return f"{text}; {others} other rank{'s' * (others != 1)} came late after it" if others else text


def _times(times: ActionTimes) -> list[Json]:
    """The times behind the prediction."""
    rows: list[tuple[Op, int, float]] = [(op, stage, took) for (op, stage, _), took in times.work.items()]
    rows += [(op, stage, took) for (op, stage, _), took in times.together.items()]
    rows += [(op, stage, took) for (op, stage), took in times.messages.items()]
    return [
        {"kind": _time_name(op), "stage": stage, "seconds": took, "samples": times.samples.get((op, stage), 0)}
        for op, stage, took in sorted(rows, key=lambda row: (row[1], list(Op).index(row[0])))
    ]


def _time_name(op: Op) -> str:
    """Of a message the time under way, which is named after what receives it."""
    if op in RECEIVES:
        return "message of " + ("activations" if op is Op.RECV_FORWARD else "gradients")
    return SPANS[op] + (" (handing over)" if op in SENDS else "")


def _columns(seen: StepActions, found: Sequence[Prediction], places: Sequence[tuple[int, int]]) -> Json:
    """Predicted spans, lane by lane in order of their start. Microseconds since `zero`."""
    kinds = [SPANS[op] for op in Op if op in DRAWN]
    columns: dict[str, list[int]] = {n: [] for n in ("lane", "kind", "stage", "micro_batch", "turn", "start", "took")}
    drawn = seen.of(DRAWN)
    for lane, (g, coordinate) in enumerate(places):
        one = found[g]
        mine = sorted((row for row in drawn if seen.rows[row][0] == coordinate), key=lambda row: one.start[row])
        for row in mine:
            action = seen.rows[row][1]
            columns["lane"].append(lane)
            columns["kind"].append(kinds.index(SPANS[action.op]))
            columns["stage"].append(action.stage)
            columns["micro_batch"].append(action.micro_batch)
            columns["turn"].append(action.turn)
            columns["start"].append(round(one.start[row] * 1e6))
            columns["took"].append(round((one.end[row] - one.start[row]) * 1e6))
    return {"kinds": kinds, **columns}


assert DRAWN <= TIMED
