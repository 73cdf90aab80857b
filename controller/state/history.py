"""What counts against a node: kept while it is absent, and in the journal when the controller restarts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.controller.state.former_names import current
from holdfast.wire import types as t

KEPT = 50
"""Node failures remembered of one node."""
SAME_FAULT_S = 60.0
"""Of a node that jobs share, what each of them reports within so many seconds is one fault."""


@dataclass(slots=True)
class History:
    cordoned: bool = False
    evicted: str = ""
    """Reason of the eviction; empty if the node is not evicted."""
    evicted_at: float = 0.0
    """Wall time of that, if Holdfast decided it."""
    tested_at: float = 0.0
    """Wall time of the last diagnosis that an incident asked for. Not kept when the controller restarts."""
    quarantined: bool = False
    """Never taken, even if no other node is there: it failed a test, or an operator said so."""
    failed_job: str = ""
    """The job that it was evicted from: other jobs get it only when it has passed a diagnosis since."""
    failed_beside: tuple[str, ...] = ()
    """Other jobs that it failed under, as they shared it."""
    outs: list[tuple[float, str]] = field(default_factory=list)
    """(wall, job) of each time that it was evicted for a fault; a reset by an operator does not change the past."""
    node_failures: list[tuple[float, str]] = field(default_factory=list)
    """(wall, kind of finding) of the faults that began on this node and count against it."""
    away_since: float = 0.0
    """Wall time at which its agent left; 0 while it is there."""
    absences: list[tuple[float, float]] = field(default_factory=list)
    """(wall of the return, seconds) of each time that it was away for longer than a lost connection takes."""
    is_away_kept: bool = field(default=False, compare=False)
    """Does the journal have `away_since`? Then its return has to be there as well."""

    def left(self, wall: float) -> None:
        self.away_since = self.away_since or wall

    def returned(self, wall: float, longest_blip: float) -> bool:
        """It is back. True if the journal has to know: it was away for so long that this is worth remembering, or the
        journal has it as away, and the next controller would count an absence until its own start."""
        since, self.away_since = self.away_since, 0.0
        is_kept, self.is_away_kept = self.is_away_kept, False
        if not since or wall - since <= longest_blip:
            return is_kept
        self.absences = [*self.absences, (wall, wall - since)][-KEPT:]
        return True

    def returns(self, wall: float, window: float) -> int:
        """How often it came back within the last `window` seconds."""
        return sum(at > wall - window for at, _ in self.absences)

    def offend(self, kind: t.FindingKind, wall: float) -> None:
        self.node_failures = [*self.node_failures, (wall, kind.value)][-KEPT:]

    def recent(self, wall: float, window: float) -> int:
        """Node failures of the last `window` seconds."""
        return sum(at > wall - window for at, _ in self.node_failures)

    def evict(self, reason: str, wall: float, quarantined: bool) -> None:
        self.evicted, self.evicted_at, self.quarantined = reason, wall, self.quarantined or quarantined

    def failed(self, job: str, beside: Iterable[str]) -> None:
        """A generation of a job failed for it. `beside`: other jobs that hold it too."""
        shared = {*self.failed_beside, *beside}
        self.failed_beside = tuple(sorted({self.failed_job, *shared} - {"", job})) if shared else ()
        self.failed_job = job

    def passed(self) -> None:
        """It has passed a diagnosis: any job may have it."""
        self.failed_job, self.failed_beside = "", ()

    def is_open_to(self, job: str) -> bool:
        """May this job start there without a diagnosis?"""
        return self.failed_job in ("", job) or job in self.failed_beside

    def reset(self, wall: float) -> None:
        """An operator examined it: it begins anew."""
        if self.evicted_at:  # so long a repair takes
            self.absences = [*self.absences, (wall, wall - self.evicted_at)][-KEPT:]
        self.cordoned, self.evicted, self.evicted_at, self.quarantined, self.node_failures = False, "", 0.0, False, []
        self.passed()

    @property
    def is_blank(self) -> bool:
        """Nothing counts against it, and no operator has changed its state."""
        return not (self.cordoned or self.evicted or self.quarantined or self.node_failures or self.outs)

    def kept(self) -> dict[str, Any]:
        """Its document, on the way to the journal."""
        self.is_away_kept = self.away_since > 0
        return self.to_doc()

    def to_doc(self) -> dict[str, Any]:
        shared = {"failed_beside": list(self.failed_beside)} if self.failed_beside else {}
        return shared | {
            "cordoned": self.cordoned,
            "evicted": self.evicted,
            "evicted_at": self.evicted_at,
            "quarantined": self.quarantined,
            "failed_job": self.failed_job,
            "outs": [list(out) for out in self.outs],
            "node_failures": [list(node_failure) for node_failure in self.node_failures],
            "away_since": self.away_since,
            "absences": [list(absence) for absence in self.absences],
        }

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "History":
        doc = current(doc)
        node_failures = [(float(at), str(kind)) for at, kind in doc.get("node_failures", ())]
        evicted, at = str(doc.get("evicted", "")), float(doc.get("evicted_at", 0.0))
        outs = [(float(at), str(job)) for at, job in doc.get("outs", ())]
        away_since = float(doc.get("away_since", 0.0))
        absences = [(float(at), float(seconds)) for at, seconds in doc.get("absences", ())]
        return cls(
            bool(doc["cordoned"]), evicted, at, quarantined=bool(doc.get("quarantined")), node_failures=node_failures,
            failed_job=str(doc.get("failed_job", "")), outs=outs, away_since=away_since, absences=absences,
            is_away_kept=away_since > 0, failed_beside=tuple(map(str, doc.get("failed_beside", ()))),
        )  # fmt: skip


def node_history(history: History, diagnoses: Iterable[dict[str, Any]], node: str) -> dict[str, Any]:
    """The history for viewers, as `http.models.NodeHistory`; `diagnoses` with their verdicts, newest first."""
    verdicts: dict[tuple[str, str, str], dict[str, Any]] = {}
    for doc in diagnoses:
        for verdict in doc["verdicts"]:
            if verdict["node"] == node:
                key = verdict["check"], verdict["metric"], verdict["component"]
                verdicts.setdefault(key, verdict | {"at": doc["ended"], "diagnosis": doc["id"]})
    doc = history.to_doc()
    for needless in ("away_since", "absences", "failed_beside"):  # what decisions need of them, an incident says
        doc.pop(needless, None)
    node_failures = [{"at": at, "kind": kind} for at, kind in history.node_failures]
    return doc | {"node_failures": node_failures, "verdicts": list(verdicts.values())}
