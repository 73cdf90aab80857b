"""What was found and what is done about it: plain state, as `model` is."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.controller.state import incident_types
from holdfast.wire import types as t


@dataclass(frozen=True, slots=True)
class Finding:
    """The output of one detector. `since`: when the fault began, `at`: when it was found (wall seconds)."""

    kind: t.FindingKind
    severity: t.Severity
    subject: str  # "rank3" | "node1" | "job" | "controller"
    text: str
    since: float
    at: float
    node: str = ""
    rank: int = -1
    secondary: bool = False
    signature: str = ""
    exit_code: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


_WORTH_S = 1.0
"""Imports of a recovery that take less are not worth a word."""


class IncidentState(StrEnum):
    OPEN = "open"
    RECOVERING = "recovering"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True)
class Incident:
    id: str
    opened: float
    findings: list[Finding] = field(default_factory=list)
    state: IncidentState = IncidentState.OPEN
    root: int = 0  # index into findings
    action: str = ""
    reason: str = ""
    source: str = ""
    restore_s: float | None = None
    restored_bytes: int = 0
    restore_sent_bytes: int | None = None
    imports_s: float | None = None  # what rank 0's own imports took of the recovery
    frameworks: str = ""  # among them, separated by commas
    closed: float | None = None
    since: float = 0.0
    generation_from: int = 0
    generation_to: int = 0
    step_at_fault: int = -1
    step_resumed: int | None = None
    phases: list[tuple[str, float, float | None]] = field(default_factory=list)
    stacks: dict[str, Any] | None = None  # what the workers were doing when no rank moved, as StackDumps.tree gives it
    job: str = ""  # id of the job that it is about; empty where there was none

    @property
    def cause(self) -> Finding:
        return self.findings[self.root]

    @property
    def phase(self) -> str:
        """The one that runs, or ran last."""
        return self.phases[-1][0] if self.phases else ""

    @property
    def is_open(self) -> bool:
        return self.state in (IncidentState.OPEN, IncidentState.RECOVERING)

    @property
    def live(self) -> bool:
        """Whether it is open and the job's: an alert is sent, and nothing waits for its end."""
        return self.is_open and self.action != "alert"

    @property
    def hint(self) -> str:
        """How the next recovery would be shorter; "" for no idea."""
        took, imports = (self.closed or 0.0) - self.opened, self.imports_s or 0.0
        if self.state is not IncidentState.CLOSED or not self.frameworks or imports < max(_WORTH_S, took / 2):
            return ""
        share = f"imports took {min(imports, took):.1f} of {took:.1f} s of this recovery"
        return f"{share}: --preload {self.frameworks} would save most of it"

    def enter(self, phase: str, wall: float) -> None:
        """Close the running phase, begin the next one."""
        if self.phases and self.phases[-1][2] is None:
            name, start, _ = self.phases[-1]
            self.phases[-1] = (name, start, wall)
        self.phases.append((phase, wall, None))

    def end(self, state: IncidentState, wall: float) -> None:
        if self.phases and self.phases[-1][2] is None:
            name, start, _ = self.phases[-1]
            self.phases[-1] = (name, start, wall)
        self.state, self.closed = state, wall

    def to_doc(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "Incident":
        """Whatever Exception for a document that is none of an incident."""
        findings = [
            Finding(**{**f, "kind": t.FindingKind(f["kind"]), "severity": t.Severity(f["severity"])})
            for f in doc["findings"]
        ]
        phases = [(name, start, end) for name, start, end in doc["phases"]]
        incident = cls(**{**doc, "findings": findings, "phases": phases, "state": IncidentState(doc["state"])})
        incident_types.check_incident(incident)
        return incident
