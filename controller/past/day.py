"""A day of a job as the lane of the page shows it, and the job at one instant of it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.controller.journal.moments import Moment
from holdfast.controller.past.moment import EVERY_S
from holdfast.controller.state.incidents import Incident

Json = dict[str, Any]
DAY_S = 86400.0
MOST_SAMPLES = 480
"""Of a lane: what a screen has room for. Changes of the condition stay beyond it."""
_GAP_S = 180.0
"""Without a moment for so long, nobody kept any: the controller was away, or the job over."""
_MOST_INCIDENTS = 500
_SUMS = ("useful_s", "queued_s")
"""Since the job's submission: only their growth says something."""


def day(job: str, moments: Sequence[Moment], incidents: Iterable[Incident], since: float, until: float) -> Json:
    """`days.Day` of the moments from `since` to `until`, oldest first. A gap is time of which nothing is kept."""
    rows = _thinned(moments, until)
    found = sorted(_during(incidents, job, since, until), key=lambda one: one.opened)[-_MOST_INCIDENTS:]
    return {
        "job": job,
        "since": since,
        "until": until,
        "at": [one.at for one, _ in rows],
        "end": [end for _, end in rows],
        "condition": [one.doc["health"]["condition"] for one, _ in rows],
        "step": [one.doc["step"] for one, _ in rows],
        "goodput": _goodput(rows),
        "generations": _changes(moments, "generation"),
        "checkpoints": _changes(moments, "stored")[-MOST_SAMPLES:],
        "incidents": [_brief(one) for one in found],
    }


def then(job: str, moment: Moment, incidents: Iterable[Incident], at: float) -> Json:
    """`days.Then`: the job as it was in the last moment before `at`, with the incidents that were open then."""
    found = [one for one in _during(incidents, job, at, at) if not _is_alert(one)]
    shown = {name: value for name, value in moment.doc.items() if name not in _SUMS}
    return {"job": job, "at": at, "kept_at": moment.at, **shown, "incidents": [_brief(one) for one in found]}


def _thinned(moments: Sequence[Moment], until: float) -> list[tuple[Moment, float]]:
    """Every nth with the time up to which it holds, and all that begin another condition or follow a gap."""
    nth = max(1, -(-len(moments) // MOST_SAMPLES))
    rows: list[tuple[Moment, float]] = []
    for i, one in enumerate(moments):
        later = moments[i + 1].at if i + 1 < len(moments) else until
        end = later if later - one.at <= _GAP_S else one.at + EVERY_S
        follows = bool(rows) and rows[-1][1] == one.at
        if follows and i % nth and _condition(one) == _condition(rows[-1][0]):
            rows[-1] = (rows[-1][0], end)
        else:
            rows.append((one, end))
    return rows


def _condition(moment: Moment) -> Any:
    return moment.doc["health"]["condition"]


def _goodput(rows: Sequence[tuple[Moment, float]]) -> list[float | None]:
    """Share of the time of each in steps that count, without the time in the queue; None where that is not known."""
    found: list[float | None] = []
    for (one, end), (later, _) in pairwise(rows):
        asked = later.at - one.at - max(0.0, later.doc["queued_s"] - one.doc["queued_s"])
        done = max(0.0, later.doc["useful_s"] - one.doc["useful_s"])
        found.append(min(1.0, done / asked) if end == later.at and asked > 0 else None)
    return [*found, None] if rows else []


def _changes(moments: Sequence[Moment], name: str) -> list[Json]:
    """[{at, name: value}] where a value became another one."""
    found = []
    for before, one in pairwise([None, *moments]):
        assert one is not None
        value = one.doc[name]
        if value is not None and (before is None or before.doc[name] != value):
            found.append({"at": one.at, name: value})
    return found


def _during(incidents: Iterable[Incident], job: str, since: float, until: float) -> Iterable[Incident]:
    """Of this job or of none, and open at some time from `since` to `until`."""
    for one in incidents:
        if one.job in ("", job) and one.opened <= until and (one.closed is None or one.closed >= since):
            yield one


def _is_alert(incident: Incident) -> bool:
    return incident.closed is not None and incident.closed == incident.opened


def _brief(i: Incident) -> Mapping[str, Any]:
    return {
        "id": i.id, "kind": i.cause.kind.value, "culprit": i.cause.subject, "text": i.cause.text, "opened": i.opened,
        "closed": i.closed, "state": i.state.value, "action": i.action, "generation": i.generation_to or None,
    }  # fmt: skip
