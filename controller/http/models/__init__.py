"""What goes over HTTP: the only description of its shapes, for checking requests and for `/openapi.json`.

Answers are sent as the facade gives them, without a pass through these classes (12,288 ranks); a test holds the answers
of a real controller to them. Times named `*_at`, `at`, `start`, `end`, `opened`, `closed` are Unix seconds; ages and
durations are seconds. An unknown number is null.
"""

from holdfast.controller.http.models.base import Instant, Number, Sizes
from holdfast.controller.http.models.done import Done, Injected, Problem, Submitted
from holdfast.controller.http.models.incident import Finding, Incident, Phase, StackRow, Stacks
from holdfast.controller.http.models.job import (
    AtRisk,
    Condition,
    Health,
    Job,
    JobBrief,
    JobPause,
    Layers,
    Layout,
    Placement,
    Plan,
    Program,
    Spent,
)
from holdfast.controller.http.models.node import (
    BRIEF_NODE,
    Gpu,
    Nic,
    NicTraffic,
    Node,
    NodeBrief,
    NodeFailure,
    NodeHistory,
    Pod,
    Traffic,
)
from holdfast.controller.http.models.ranks import Ranks, Steps
from holdfast.controller.http.models.requests import FaultSpec, JobLimits, JobSpec, ProgramSpec, RestartSpec, StopSpec
from holdfast.controller.http.models.status import Status

__all__ = [
    "BRIEF_NODE",
    "AtRisk",
    "Condition",
    "Done",
    "FaultSpec",
    "Finding",
    "Gpu",
    "Health",
    "Incident",
    "Injected",
    "Instant",
    "Job",
    "JobBrief",
    "JobLimits",
    "JobPause",
    "JobSpec",
    "Layers",
    "Layout",
    "Nic",
    "NicTraffic",
    "Node",
    "NodeBrief",
    "NodeFailure",
    "NodeHistory",
    "Number",
    "Phase",
    "Placement",
    "Plan",
    "Pod",
    "Problem",
    "Program",
    "ProgramSpec",
    "Ranks",
    "RestartSpec",
    "Sizes",
    "Spent",
    "StackRow",
    "Stacks",
    "Status",
    "Steps",
    "StopSpec",
    "Submitted",
    "Traffic",
]
