"""Incidents and stacks over HTTP."""

from typing import Any, Literal

from pydantic import Field

from holdfast.controller.http.models.base import Answer, Instant, Number


class Phase(Answer):
    name: str
    start: float
    end: Instant = Field(description="Null while it lasts.")


class Finding(Answer):
    kind: str
    severity: Literal["info", "warning", "critical"]
    subject: str
    text: str
    at: float
    evidence: dict[str, Any]


class StackRow(Answer):
    depth: int = Field(
        description="Increases where ranks diverge; rows of the same ranks are calls, each from the row before it."
    )
    ranks: str = Field(description="Ranks in this frame, e.g. `0-7`, `0-28/4`, `1,5,9-11`.")
    frame: str = Field(description="`file:line function`.")


class Stacks(Answer):
    at: float
    job: str
    generation: int
    missing: dict[str, str] = Field(description="Nodes without an answer, and the reason.")
    states: dict[str, str] = Field(description="By rank: state of the process, and its wait in the kernel.")
    rows: list[StackRow]


class Incident(Answer):
    id: str | int
    job: str | None = Field(description="Id of the affected job; null: a node without a job.")
    kind: str
    culprit: str = Field(description="`rank3`, `node1` or `job`.")
    severity: Literal["info", "warning", "critical"]
    state: Literal["open", "recovering", "closed", "failed"]
    summary: str
    opened: float
    closed: Instant
    action: str | None = Field(description="The action of Holdfast.")
    reason: str | None = Field(description="Reason of the action.")
    detect_s: Number = Field(description="From the fault to its detection.")
    recover_s: Number = Field(description="From detection to the first new step.")
    source: str | None = Field(description="Where the state came from: memory, peer or store.")
    restore_s: Number = Field(description="Part of recover_s that the restore took.")
    restored_bytes: int | None = Field(description="Bytes that all ranks read for the restore.")
    restore_sent_bytes: int | None = Field(
        default=None, description="Bytes that all ranks sent from host to host for the restore."
    )
    imports_s: Number = Field(default=None, description="Part of recover_s that rank 0's own imports took.")
    hint: str | None = Field(default=None, description="How the next recovery would be shorter.")
    generation_from: int | None
    generation_to: int | None
    step_at_fault: int | None
    step_resumed: int | None
    phases: list[Phase]
    findings: list[Finding]
    stacks: Stacks | None = Field(description="Stacks of the workers while no rank made progress.")
