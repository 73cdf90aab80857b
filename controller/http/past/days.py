"""The day of a job, and what it was at one instant of it, over HTTP."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.base.json_text import encode
from holdfast.controller.http.answer import answer
from holdfast.controller.http.facade import Facade
from holdfast.controller.http.models import Number

At = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix time.")]


class IncidentThen(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str
    kind: str
    culprit: str
    text: str
    opened: float
    closed: float | None
    state: str = Field(description="Now.")
    action: str
    generation: int | None = Field(description="That it led to.")


class Began(BaseModel):
    at: float
    generation: int


class Stored(BaseModel):
    at: float
    stored: int = Field(description="Newest step that no fault could take any more.")


class Day(BaseModel):
    """24 hours of a job as columns, oldest first: a row each minute or few, and where the condition changed."""

    job: str
    since: float
    until: float
    at: list[float]
    end: list[float] = Field(description="Until when each row holds; where the next begins later, nothing is kept.")
    condition: list[str] = Field(description="That led the job's health.")
    step: list[int] = Field(description="Newest finished step; -1: none.")
    goodput: list[Number] = Field(description="Share of the row's time in steps that count, without the queue.")
    generations: list[Began]
    checkpoints: list[Stored]
    incidents: list[IncidentThen] = Field(description="Open at some time of the day; of this job or of none.")


class HealthThen(BaseModel):
    model_config = ConfigDict(extra="allow")
    condition: str
    sentence: str
    since: float
    action: str
    needs_person: bool
    doing: str
    usual_s: float | None
    rank: int | None
    target: str


class HealthsThen(HealthThen):
    others: list[HealthThen]


class Then(BaseModel):
    """A job as it was at one instant of its past: its last moment before that which was kept, at most a minute old
    while the controller ran."""

    model_config = ConfigDict(extra="allow")
    job: str
    at: float = Field(description="As asked for.")
    kept_at: float = Field(description="Of the moment.")
    state: str
    reason: str
    step: int
    max_steps: int
    tokens_per_s: Number
    step_seconds: Number
    loss: Number
    mfu: Number
    goodput: Number = Field(description="Of the 24 hours before.")
    at_risk: Number = Field(description="Seconds of work lost if a worker had failed; else, if the job had.")
    stored: int | None
    spares: int
    restarts: int
    generation: int
    nnodes: int
    world_size: int
    doubtful: dict[str, str] = Field(description="State of nodes that were neither healthy nor spares: 200 at most.")
    doubtful_many: int
    health: HealthsThen
    incidents: list[IncidentThen] = Field(description="Open then; of this job or of none.")


def routes(facade: Facade, reads: Callable[..., Awaitable[str]]) -> APIRouter:
    api = APIRouter(tags=["look"])

    @api.get("/day", response_model=Day, summary="Its last 24 hours, or those before a time")
    async def day(
        request: Request,
        id: Annotated[str, Depends(reads)],
        until: Annotated[
            float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix time; else now.")
        ] = None,
    ) -> Response:
        """Condition, goodput, generations, checkpoints and incidents by time, from the journal."""
        read = facade.day(until, id)
        return await answer(request, lambda: encode(read()))

    @api.get("/then", response_model=Then, summary="What it was at a time of its past")
    async def then(request: Request, id: Annotated[str, Depends(reads)], at: At) -> Response:
        """409 where nothing is kept of that time."""
        read = facade.then(at, id)
        return await answer(request, lambda: encode(read()))

    return api
