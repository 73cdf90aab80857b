"""The state of the controller over HTTP."""

from pydantic import Field

from holdfast.controller.http.models.base import Answer
from holdfast.controller.http.models.incident import Incident
from holdfast.controller.http.models.job import Job, JobBrief


class Status(Answer):
    version: int = Field(description="Goes up with every visible change.")
    now: float
    started_at: float
    job: Job | None = Field(description="The newest job; in an event, the job that the stream follows.")
    jobs: list[JobBrief] = Field(description="As GET /jobs.")
    nodes: dict[str, str] = Field(description="State by node.")
    counts: dict[str, int] = Field(description="Nodes by state.")
    incidents: list[Incident] = Field(description="The last 20, newest first, without `stacks`.")
    open_incidents: int
