"""What `/metrics` takes from the facade beyond the API's own shapes. It goes over no route: tests hold data to it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.controller.http import models


class _Figures(BaseModel):
    model_config = ConfigDict(extra="allow")


class NewestVerdict(_Figures):
    node: str
    test: str
    metric: str
    value: float | None
    grade: Literal["pass", "degraded", "fail"]


class ControllerFigures(_Figures):
    """Counters go up from the start of the controller."""

    frames_total: int
    frame_bytes_total: int
    events_total: int
    malformed_total: int
    refused_total: dict[str, int] = Field(description="Left out of agents' messages, by reason.")
    alerts_suppressed_total: int
    bugs_total: int
    spans_total: int
    spans_lost_total: int
    notifications_total: dict[str, dict[str, int]] = Field(description="By receiver and outcome.")
    commands_total: dict[str, int] = Field(description="By result.")
    steps_total: int
    journal_seconds_total: float
    journal_failing: bool
    loop_lag_seconds: float
    certificates: dict[str, float] = Field(description="Unix time of the end, by subject.")
    findings_total: dict[str, int] = Field(description="By kind.")
    incidents_total: dict[str, int] = Field(description="By kind of their cause.")
    diagnoses_running: int
    diagnostics: list[NewestVerdict] = Field(description="The newest of each node, test and figure.")


class BlameFigures(_Figures):
    """By rank; empty before the first look at the job's spans."""

    self_ratio: dict[int, float] = {}
    induced_s: dict[int, float] = {}
    victim_s: dict[int, float] = {}


class JobFigures(_Figures):
    job: models.Job
    ranks: models.Ranks
    blame: BlameFigures
    lost_seconds: dict[str, float] = Field(description="By account; one that is unknown is missing.")
    productive_seconds: float
    unsaved_seconds: float
    queued_seconds: float
    wall_seconds: float
    slow_cost: float | None = Field(description="Share of the step; None before the first look at the job's spans.")
