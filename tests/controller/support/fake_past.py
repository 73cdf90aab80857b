"""A made-up day of `fake_facade`'s job: it trained, lost rank 3 two hours ago, and was without a controller at noon."""

import copy
from collections.abc import Iterator

from holdfast.base.errors import Conflict
from holdfast.controller.http.facade import Json
from holdfast.controller.journal.moments import Moment
from holdfast.controller.past import day as past
from holdfast.controller.past.moment import EVERY_S, moment
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.wire import types as t

LOST_S = (7200.0, 6600.0)
"""Before now: rank 3 failed, and the job trained again."""
AWAY_S = (43200.0, 39600.0)


def fake_day(document: Json, incidents: list[Json], now: float, until: float) -> Json:
    found = [one for one in _moments(document, now) if until - past.DAY_S <= one.at <= until]
    return past.day(document["id"], found, map(_incident, incidents), until - past.DAY_S, until)


def fake_then(document: Json, incidents: list[Json], now: float, at: float) -> Json:
    before = [one for one in _moments(document, now) if one.at <= at]
    if not before:
        raise Conflict("nothing is kept of that time")
    return past.then(document["id"], before[-1], map(_incident, incidents), at)


def _moments(document: Json, now: float) -> Iterator[Moment]:
    at, useful = now - past.DAY_S, 0.0
    while at <= now:
        age = now - at
        if not AWAY_S[1] < age <= AWAY_S[0]:
            doc = copy.deepcopy(document) | {
                "step": max(0, int(document["step"] - age)),
                "generation": 1 + (age < LOST_S[0]),
            }
            is_lost = LOST_S[1] < age <= LOST_S[0]
            if is_lost:
                doc["health"] |= {
                    "condition": "recovering", "sentence": "Recovering: rank 3 was killed.", "rank": 3,
                    "action": "Nothing to do.", "doing": "restart",
                }  # fmt: skip
            elif age > 60.0:
                doc["health"] |= {"condition": "well", "sentence": "Training normally.", "rank": None}
            yield Moment(at, moment(doc, useful, doc["step"] // 10 * 10, 1, {"node0": "lost"} if is_lost else {}))
            useful += 0.0 if is_lost else 0.97 * EVERY_S
        at += EVERY_S


def _incident(doc: Json) -> Incident:
    found = Finding(
        t.FindingKind(doc["kind"]),
        t.Severity(doc["severity"]),
        doc["culprit"],
        doc["summary"],
        doc["opened"],
        doc["opened"],
    )
    return Incident(
        doc["id"], doc["opened"], [found], IncidentState(doc["state"]), action=doc["action"] or "",
        closed=doc["closed"], generation_to=doc["generation_to"] or 0, job=doc.get("job") or "",
    )  # fmt: skip
