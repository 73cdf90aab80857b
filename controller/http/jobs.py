"""Jobs over HTTP: the list, and each under `/jobs/{id}`. `/job`, `/ranks`, `/steps` and so on are the newest's aliases.

A job is named by its id, or by its name. Several jobs may have had the same name, but no two active ones: the name
means the active job, else the newest that had it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException

from holdfast.base.errors import NotFound
from holdfast.base.json_text import encode
from holdfast.controller.http import models
from holdfast.controller.http.answer import answer, small
from holdfast.controller.http.facade import Facade, Json
from holdfast.controller.http.guard import EventStream
from holdfast.controller.http.past.days import routes as past_routes
from holdfast.controller.http.spans import parse_ranks
from holdfast.controller.http.spans import routes as span_routes
from holdfast.controller.http.streams import SaidBy, Streams, stream
from holdfast.controller.state.log_levels import Level
from holdfast.controller.state.log_wanted import LogWanted

ACTIVE = ("pending", "starting", "running", "recovering")
JobKey = Annotated[str, Path(max_length=256, description="Id of a job, or its name.")]
SpanJob = Annotated[str, Query(max_length=256, description="Another job, also one whose spans are only on disk.")]
Find = Callable[..., Awaitable[str]]
"""A dependency that gives the id of a request's job."""


class Hour(BaseModel):
    """Columns, oldest first: the last hour of a job, sampled every 15 s."""

    model_config = ConfigDict(extra="allow")
    job: str
    at: list[float]
    mfu: list[models.Number]
    goodput: list[models.Number] = Field(description="Of the 24 hours before each sample.")
    at_risk: list[models.Number] = Field(
        description="Seconds of work lost if a worker failed; else, if the job failed."
    )
    spares: list[int]


def _optional(name: str, field: FieldInfo) -> Any:
    empty: Any = {"part_seconds": dict, "sizes": type(None)}.get(name, list)
    return field.annotation, Field(default_factory=empty, description=field.description)


_SOME: Any = {name: _optional(name, field) for name, field in models.Ranks.model_fields.items()}
SomeRanks = create_model("SomeRanks", __doc__="Those columns that were asked for, with their tables.", **_SOME)


@dataclass(frozen=True, slots=True)
class Which:
    """How a route finds its job: from its path, or, of an alias, without one. Empty ids are the facade's default."""

    reads: Find
    commands: Find
    faults: Find
    spans: Find
    none_yet: bool
    """Whether there may be no job yet."""


def lookup(facade: Facade, key: str) -> Json | None:
    """The job with this id, else the active or the newest one with this name; None when there is none."""
    jobs = facade.jobs()
    by_id = next((job for job in jobs if job["id"] == key), None)
    return by_id or next((job for job in jobs if job["name"] == key), None)


def find_job(facade: Facade, key: str) -> Json:
    """HTTPException when there is none."""
    found = lookup(facade, key)
    if found is None:
        raise HTTPException(404, f"no job is called {key!r}; GET /api/v1/jobs lists them")
    return found


def only_active(facade: Facade, *, may_lack: bool = False) -> str:
    """The id of the only active job. HTTPException when there are several, or none (`may_lack`: then an empty id)."""
    active = [job for job in facade.jobs() if job["state"] in ACTIVE]
    if len(active) > 1:
        names = ", ".join(f"{job['name']} ({job['id']})" for job in active)
        raise HTTPException(409, f"several jobs are active: {names}; name one: POST /api/v1/jobs/{{id}}/...")
    if not active and not may_lack:
        raise HTTPException(409, "no job is running")
    return str(active[0]["id"]) if active else ""


TABLES = {"node": "nodes", "phase": "phases", "state": "states", "operation": "operations", "pp": "sizes"}
"""By column of the ranks, the table that its numbers point into, or that belongs to it."""


def only(ranks: Json, columns: str) -> Json:
    """The named columns and their tables. HTTPException names the first that does not exist."""
    wanted = [name for name in columns.split(",") if name]
    known = ranks.keys() - TABLES.values()
    if odd := [name for name in wanted if name not in known]:
        raise HTTPException(400, f"ranks have no column {odd[0]!r}; they have {', '.join(sorted(known))}")
    tables = [TABLES[name] for name in wanted if name in TABLES]
    return {name: ranks[name] for name in (*wanted, *tables)} if wanted else ranks


def routes(facade: Facade, streams: Streams) -> APIRouter:
    api = APIRouter()
    api.include_router(_all(facade))
    named, newest = _named(facade), _newest(facade)
    for prefix, bare, which in (("/jobs/{id}", "/jobs/{id}", named), ("/job", "", newest)):
        api.include_router(_reads(facade, streams, which), prefix=prefix)
        api.include_router(past_routes(facade, which.reads), prefix=prefix)
        api.include_router(_commands(facade, which), prefix=prefix)
        api.include_router(_columns(facade, which), prefix=bare)
        api.include_router(_faults(facade, which), prefix=bare)
        api.include_router(span_routes(facade, which.reads, which.spans), prefix=bare)
    return api


def _named(facade: Facade) -> Which:
    # Coroutines all of them: FastAPI would call a plain function in another thread.
    async def reads(id: JobKey) -> str:
        return str(find_job(facade, id)["id"])

    async def commands(id: JobKey) -> str:
        found = find_job(facade, id)
        if found["state"] not in ACTIVE:
            raise HTTPException(409, f"job {found['name']} ({found['id']}) is already {found['state']}")
        return str(found["id"])

    async def spans(id: JobKey) -> str:
        found = lookup(facade, id)
        if found is not None:
            return str(found["id"])
        try:
            facade.spans(id, -1, -1)  # reads nothing yet
        except NotFound as error:
            raise HTTPException(404, f"{error}; GET /api/v1/jobs lists the jobs in memory") from None
        return id

    return Which(reads, commands, commands, spans, none_yet=False)


def _newest(facade: Facade) -> Which:
    async def reads() -> str:
        return ""

    async def commands() -> str:
        return only_active(facade)

    async def faults() -> str:
        return only_active(facade, may_lack=True)  # a node can be broken without a job

    async def spans(job: SpanJob = "") -> str:
        found = lookup(facade, job) if job else None
        return job if found is None else str(found["id"])

    return Which(reads, commands, faults, spans, none_yet=True)


def _all(facade: Facade) -> APIRouter:
    api = APIRouter()

    @api.get(
        "/jobs", tags=["look"], response_model=list[models.JobBrief], summary="All jobs, in the order of the queue"
    )
    async def jobs(request: Request) -> Response:
        """Active jobs in the order in which they get nodes, then those that ended, the newest first."""
        rows = facade.jobs()
        return await answer(request, lambda: encode(rows))

    @api.post("/jobs", tags=["do"], status_code=201, response_model=models.Submitted, summary="Submit a job")
    async def submit(spec: models.JobSpec) -> Response:
        """It waits in the queue until there are nodes for it."""
        return small({"id": await facade.submit(spec.model_dump())}, 201)

    return api


def _reads(facade: Facade, streams: Streams, which: Which) -> APIRouter:
    api = APIRouter(tags=["look"])
    shape: Any = models.Job | None if which.none_yet else models.Job

    @api.get("", response_model=shape, summary="The job; null before the first" if which.none_yet else "One job")
    async def job(id: Annotated[str, Depends(which.reads)]) -> Response:
        return small(facade.job(id))

    @api.get("/health", response_model=models.Health | None, summary="Its health: one condition leads, in one sentence")
    async def health(id: Annotated[str, Depends(which.reads)]) -> Response:
        return small(facade.health(id))

    @api.get("/hour", response_model=Hour | None, summary="Its last hour, as columns")
    async def hour(
        id: Annotated[str, Depends(which.reads)],
        since: Annotated[float, Query(description="Only samples after this Unix time.")] = 0.0,
    ) -> Response:
        return small(facade.hour(since, id))

    @api.get("/plan", response_model=models.Plan | None, summary="The plan of a step; null until it is known")
    async def plan(request: Request, id: Annotated[str, Depends(which.reads)]) -> Response:
        data = facade.plan(id)
        return await answer(request, lambda: encode(data))

    @api.get("/layout", response_model=models.Layout | None, summary="Who sits where, and what leaves each place")
    async def layout(request: Request, id: Annotated[str, Depends(which.reads)]) -> Response:
        data = facade.layout(id)
        return await answer(request, lambda: encode(data))

    @api.get(
        "/logs",
        tags=["live"],
        response_class=EventStream,
        responses=stream("line", "unfinished", "end"),
        summary="The job's log, live",
    )
    async def logs(
        id: Annotated[str, Depends(which.reads)],
        ranks: Annotated[str, Query(max_length=400, description='Only these ranks, as "0-3,8".')] = "",
        node: Annotated[str, Query(max_length=256, description="Only ranks of this node.")] = "",
        generation: Annotated[
            int | None, Query(ge=0, description="Only this generation; else all that are kept.")
        ] = None,
        seconds: Annotated[
            float | None, Query(ge=0, le=1e9, description="Only what came within so many seconds.")
        ] = None,
        follow: Annotated[bool, Query(description="False: end after what is kept.")] = True,
        level: Annotated[
            Literal["debug", "info", "warning", "error"], Query(description="Only lines of this level or a worse one.")
        ] = "debug",
        rate: Annotated[
            float | None, Query(ge=100, le=1e9, description="Characters a second at most; others are left out.")
        ] = None,
    ) -> Response:
        """Event `line`: a LogLine, beginning with what is kept: the newest lines of the last nine generations, 1 MiB of
        the newest one and 256 kiB of each earlier one, in fair shares of their ranks. Event `unfinished`: what a line
        shows that has no end yet. Event `end`: all was sent, and the job has ended or is not followed."""
        job = facade.job(id)
        if job is None:
            raise HTTPException(409, "no job has been submitted")
        wanted = LogWanted(frozenset(parse_ranks(ranks)), node, generation, seconds, follow, Level[level.upper()], rate)
        return EventStream(streams.logs(facade.log_lines(job["id"], wanted)))

    @api.get("/logs/same", response_model=SaidBy, summary="Which ranks said this line")
    async def same(
        request: Request,
        id: Annotated[str, Depends(which.reads)],
        text: Annotated[str, Query(min_length=1, max_length=4000, description="A line.")],
        generation: Annotated[int | None, Query(ge=0, description="Only this generation.")] = None,
    ) -> Response:
        """Numbers, times and addresses may differ. Of the lines that the controller keeps."""
        job = facade.job(id)
        if job is None:
            raise HTTPException(409, "no job has been submitted")
        read = facade.log_same(job["id"], text, generation)
        return await answer(request, lambda: encode(read()))

    if not which.none_yet:  # without a job, /incidents has those of nodes, too

        @api.get("/incidents", response_model=list[models.Incident], summary="The job's incidents, newest first")
        async def incidents(request: Request, id: Annotated[str, Depends(which.reads)]) -> Response:
            data = facade.incidents(id)
            return await answer(request, lambda: encode(data))

    return api


def _columns(facade: Facade, which: Which) -> APIRouter:
    api = APIRouter(tags=["look"])

    @api.get("/ranks", response_model=models.Ranks | SomeRanks, summary="All ranks, as columns")
    async def ranks(
        request: Request,
        id: Annotated[str, Depends(which.reads)],
        columns: Annotated[
            str, Query(max_length=512, description="Only these columns, `step,state`, with their tables. Empty: all.")
        ] = "",
    ) -> Response:
        data = only(facade.ranks(id), columns)
        return await answer(request, lambda: encode(data))

    @api.get("/steps", response_model=models.Steps, summary="Finished steps, as columns")
    async def steps(
        request: Request,
        id: Annotated[str, Depends(which.reads)],
        since: Annotated[int, Query(ge=-1, description="Only steps after this one.")] = -1,
        limit: Annotated[int, Query(ge=1, le=100_000, description="Only the newest so many.")] = 5000,
    ) -> Response:
        data = facade.steps(since=since, limit=limit, id=id)
        return await answer(request, lambda: encode(data))

    @api.get("/steps/superseded", response_model=models.Steps, summary="Steps of earlier generations, done again since")
    async def superseded_steps(
        request: Request,
        id: Annotated[str, Depends(which.reads)],
        limit: Annotated[int, Query(ge=1, le=100_000, description="Only the newest so many.")] = 5000,
    ) -> Response:
        data = facade.superseded_steps(limit=limit, id=id)
        return await answer(request, lambda: encode(data))

    return api


def _commands(facade: Facade, which: Which) -> APIRouter:
    api = APIRouter(tags=["do"])

    @api.post("/stop", response_model=models.Done, summary="Stop the job")
    async def stop(id: Annotated[str, Depends(which.commands)], spec: models.StopSpec | None = None) -> Response:
        await facade.stop((spec or models.StopSpec()).grace, id)
        return small({"ok": True})

    @api.post("/restart", response_model=models.Done, summary="Restart the job from its newest state")
    async def restart(id: Annotated[str, Depends(which.commands)], spec: models.RestartSpec | None = None) -> Response:
        await facade.restart((spec or models.RestartSpec()).dump, id)
        return small({"ok": True})

    @api.post("/stacks", response_model=models.Stacks, summary="The stacks of all its workers, as one call tree")
    async def stacks(request: Request, id: Annotated[str, Depends(which.commands)]) -> Response:
        data = await facade.stacks(id)
        return await answer(request, lambda: encode(data))

    @api.post("/checkpoint", response_model=models.Done, summary="Make a checkpoint of the job's next step")
    async def checkpoint(id: Annotated[str, Depends(which.commands)]) -> Response:
        await facade.checkpoint(id)
        return small({"ok": True})

    return api


def _faults(facade: Facade, which: Which) -> APIRouter:
    api = APIRouter(tags=["do"])

    @api.post("/inject", response_model=models.Injected, summary="Inject a fault")
    async def inject(spec: models.FaultSpec, id: Annotated[str, Depends(which.faults)]) -> Response:
        return small(await facade.inject(spec.fault, id))

    return api
