"""Which incidents one run of the controller had then, when it was recorded, and which it has now. Pure."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.controller.journal.recording import Reported, Start, incident_records
from holdfast.controller.journal.summary import UNKNOWN, IncidentSummary
from holdfast.controller.state.events import Action, Record, Say
from holdfast.diagnostics.hang.stillness import Liveness

_ORDER = re.compile(r"send .* (StopWorkers|StartWorkers) \S+ generation (\d+)")
_NEARBY_S = 600.0
"""Seconds beyond which two incidents about one culprit are no pair: an alert about a pause is sent after 300."""
_JOB = "job"
"""The culprit of an incident that is about no rank or node in particular."""


@dataclasses.dataclass(slots=True)
class IncidentTrace:
    """An incident as the lines of a recording show it."""

    id: str
    line: int
    """The first line of this run that records it."""
    checksum: str
    """Of its last document."""
    recorded: float
    """Wall time of that line, seconds."""
    generation: int
    """The newest one that the recorded controller had started by then."""
    summary: IncidentSummary = UNKNOWN
    is_carried: bool = False
    """Whether an earlier run opened it."""

    def to_doc(self) -> dict[str, Any]:
        return {"id": self.id, "line": self.line, **dataclasses.asdict(self.summary)}


@dataclasses.dataclass(frozen=True, slots=True)
class IncidentChange:
    """An incident that differs now or is found at another line. None: there is none."""

    then: IncidentTrace | None
    now: IncidentTrace | None
    pause: str = ""
    """Busy, idle or unknown, if there is no incident now because the job is judged to pause."""

    @property
    def id(self) -> str:
        """The recorded id; that of now where there was no incident then."""
        one = self.then or self.now
        return one.id if one else ""

    @property
    def line(self) -> int:
        one = self.then or self.now
        return one.line if one else 0

    @property
    def text(self) -> str:
        """For example "i3 worker-hang rank5 restart -> worker-paused rank5 alert (line 347, now line 352)"."""
        then, now = (one.summary.text if one else "none" for one in (self.then, self.now))
        if self.then and self.now and then == now:
            then, now = self.then.summary.details, self.now.summary.details
        if self.pause:
            life = "not measured" if self.pause == Liveness.UNKNOWN else self.pause
            now += f" (the job pauses: {life})"
        lines = [f"line {self.then.line}"] if self.then else []
        if self.now and self.now.line != (self.then.line if self.then else 0):
            lines.append(f"now line {self.now.line}")
        return f"{self.id} {then} -> {now} ({', '.join(lines)})"

    def to_doc(self) -> dict[str, Any]:
        then, now = (one.to_doc() if one else None for one in (self.then, self.now))
        return {"id": self.id, "then": then, "now": now, "pause": self.pause, "text": self.text}


class RunComparison:
    """Collects the incidents of one run of the controller, then and now."""

    def __init__(self, start: Start) -> None:
        self._began = start.at.wall
        self._carried = {key for kind, key, _ in start.entities if kind == "incident"}
        self.then: dict[str, IncidentTrace] = {}
        self.now: dict[str, IncidentTrace] = {}
        self.aftermath: dict[str, IncidentTrace] = {}
        """Incidents of now about workers that ended because the recorded controller stopped them."""
        self._stopped_then: set[int] = set()  # generations
        self._stopped_now: set[int] = set()
        self._generation = -1
        self._pause = ""
        self._pauses: dict[str, str] = {}  # by incident of then: the pause of now when it was opened

    def add(self, reported: Reported, actions: Sequence[Action], lines: Sequence[str]) -> None:
        """`actions` and `lines`: what is decided now, in two forms."""
        self._note_pause(actions, lines)
        known = set(self.then)
        self._note(self.then, reported, reported.did)
        self._pauses.update(dict.fromkeys(self.then.keys() - known, self._pause))
        known = set(self.now)
        self._note(self.now, reported, lines)
        stopped = self._stopped_then - self._stopped_now
        for action in actions:
            if isinstance(action, Record) and action.kind == "incident" and action.id not in known:
                if _ended_generation(action.doc) in stopped:
                    self.aftermath[action.id] = self.now[action.id]
                known.add(action.id)
        self._generation = max(_ordered("StartWorkers", reported.did), default=self._generation)
        self._stopped_then |= _ordered("StopWorkers", reported.did)
        self._stopped_now |= _ordered("StopWorkers", lines)

    def finish(self, entities: Sequence[tuple[str, str, Mapping[str, Any]]] = ()) -> None:
        """Complete the summaries of then, which recordings before version 3 lack.

        `entities`: what the next run began from. A document with the same checksum is the same document.
        """
        docs = {key: doc for kind, key, doc in entities if kind == "incident" and isinstance(doc, dict)}
        for one in self.then.values():
            if one.summary.is_known:
                continue
            ours, doc = self.now.get(one.id), docs.get(one.id)
            if ours is not None and ours.checksum == one.checksum:
                one.summary = ours.summary
            elif doc is not None and (one.is_carried or self._is_of_this_life(doc, one)):
                # The journal may have records after the last one of the recording: those would change the state.
                one.summary = dataclasses.replace(IncidentSummary.from_doc(doc), state="", life="")

    def _is_of_this_life(self, doc: Mapping[str, Any], one: IncidentTrace) -> bool:
        """The next run may have begun with another journal, which has its own i1."""
        opened = doc.get("opened")
        return isinstance(opened, float | int) and self._began <= opened <= one.recorded

    @property
    def opened_then(self) -> list[IncidentTrace]:
        return [one for one in self.then.values() if not one.is_carried]

    @property
    def opened_now(self) -> list[IncidentTrace]:
        return [one for one in self.now.values() if not one.is_carried and one.id not in self.aftermath]

    def changes(self) -> list[IncidentChange]:
        now = [one for one in self.now.values() if one.id not in self.aftermath]
        found = []
        for old, new in _paired(list(self.then.values()), now):
            if old is None or new is None or _differs(old, new):
                pause = self._pauses[old.id] if old is not None and new is None else ""
                found.append(IncidentChange(old, new, pause))
        return sorted(found, key=lambda change: change.line)

    def _note(self, traces: dict[str, IncidentTrace], reported: Reported, lines: Sequence[str]) -> None:
        for key, checksum, summary in incident_records(lines):
            one = traces.get(key)
            if one is None:
                carried = key in self._carried
                traces[key] = IncidentTrace(
                    key, reported.line, checksum, reported.at.wall, self._generation, summary, carried
                )
            else:
                one.checksum, one.summary = checksum, summary

    def _note_pause(self, actions: Sequence[Action], lines: Sequence[str]) -> None:
        for action in actions:
            if isinstance(action, Say) and action.name == "job.paused":
                self._pause = str(action.fields.get("life", ""))
            elif isinstance(action, Say) and action.name == "job.moves":
                self._pause = ""
        if _ordered("StopWorkers", lines):
            self._pause = ""


def _ordered(order: str, lines: Sequence[str]) -> set[int]:
    """Generations whose workers are stopped, or started."""
    orders = filter(None, map(_ORDER.fullmatch, lines))
    return {int(found[2]) for found in orders if found[1] == order}


def _ended_generation(doc: Mapping[str, Any]) -> int | None:
    """The generation of the worker whose end is the cause of this incident; None for another cause."""
    cause = doc["findings"][doc["root"]]
    return None if cause["exit_code"] is None else int(doc["generation_from"])


def _paired(
    then: Sequence[IncidentTrace], now: Sequence[IncidentTrace]
) -> list[tuple[IncidentTrace | None, IncidentTrace | None]]:
    """Pair what is most alike first. Ids are no key: where one incident is missing, all later ids are shifted."""
    matches: dict[str, IncidentTrace] = {}
    left = list(now)
    for is_match in _MATCHES:
        for one in then:
            match = None if one.id in matches else next((new for new in left if is_match(one, new)), None)
            if match is not None:
                matches[one.id] = match
                left.remove(match)
    return [(one, matches.get(one.id)) for one in then] + [(None, one) for one in left]


def _is_carried(old: IncidentTrace, new: IncidentTrace) -> bool:
    return old.is_carried and new.is_carried and old.id == new.id


def _has_same_line(old: IncidentTrace, new: IncidentTrace) -> bool:
    return not old.is_carried and not new.is_carried and old.line == new.line


def _has_same_cause(old: IncidentTrace, new: IncidentTrace) -> bool:
    causes = [(one.summary.kind, one.summary.culprit) for one in (old, new)]
    return not old.is_carried and not new.is_carried and causes[0] == causes[1]


def _has_same_both(old: IncidentTrace, new: IncidentTrace) -> bool:
    return _has_same_line(old, new) and _has_same_cause(old, new)


def _is_nearby(old: IncidentTrace, new: IncidentTrace) -> bool:
    """Are both about one culprit, as far as that is known, at one time of one attempt of the job?"""
    if old.is_carried or new.is_carried or old.generation != new.generation:
        return False
    if abs(old.recorded - new.recorded) > _NEARBY_S:
        return False
    culprits = {old.summary.culprit, new.summary.culprit}
    # A standstill may be the job's or one worker's.
    are_workers = all(one.summary.kind.startswith("worker-") for one in (old, new))
    return not old.summary.is_known or len(culprits) == 1 or (_JOB in culprits and are_workers)


_MATCHES: Sequence[Callable[[IncidentTrace, IncidentTrace], bool]] = (
    _is_carried, _has_same_both, _has_same_line, _has_same_cause, _is_nearby,
)  # fmt: skip


def _differs(old: IncidentTrace, new: IncidentTrace) -> bool:
    then, now = old.summary, new.summary
    if old.line != new.line:
        return True
    if not then.is_known:
        return False
    if (then.kind, then.culprit, then.action) != (now.kind, now.culprit, now.action):
        return True
    return bool(then.state) and (then.state, then.life) != (now.state, now.life)
