"""The HTTP API: a thin layer around the facade. Every error is one JSON shape, `{"error": "one clear line"}`.

The page's own files and `/healthz` are open, so that a browser can load the page that asks for the token; all that
tells or changes something needs it.
"""

import logging
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import holdfast
from holdfast.base.json_text import encode
from holdfast.controller.http import errors as http_errors
from holdfast.controller.http import models
from holdfast.controller.http.answer import answer
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.diagnose import routes as diagnose_routes
from holdfast.controller.http.facade import Facade, Json
from holdfast.controller.http.guard import EventStream, Guard
from holdfast.controller.http.metrics import CONTENT_TYPE, Metrics
from holdfast.controller.http.spans import routes as span_routes
from holdfast.controller.http.streams import Streams

log = logging.getLogger(__name__)

PAGE = Path(__file__).parents[1] / "page"
ACTIVE = ("pending", "starting", "running", "recovering")
Seconds = Annotated[float, Query(gt=0, le=600)]


def create_app(facade: Facade, auth: Auth) -> FastAPI:
    """The application around one controller. `app.state.streams.close()` ends its event streams (see `serve`)."""
    app = FastAPI(
        title="Holdfast controller",
        version=holdfast.__version__,
        description="State of the cluster, the job and its incidents; commands; live events; metrics.",
        docs_url=None,  # these two would load their scripts from another host
        redoc_url=None,
        openapi_url=None,
    )
    app.state.streams = Streams(facade)
    app.add_middleware(Guard, auth=auth)
    http_errors.install(app)
    bearer = HTTPBearer(
        auto_error=False,
        description="The API token, a reader's for GET, an operator's for all; not needed on an open loopback server.",
    )

    needs_token = [Depends(bearer)]  # says so in the schema; the guard sees to it before a body is read
    app.include_router(_reads(facade), prefix="/api/v1", dependencies=needs_token)
    app.include_router(_commands(facade), prefix="/api/v1", dependencies=needs_token)
    app.include_router(diagnose_routes(facade), prefix="/api/v1", dependencies=needs_token)
    app.include_router(span_routes(facade), prefix="/api/v1", dependencies=needs_token)
    app.include_router(_live(facade, app.state.streams), prefix="/api/v1", dependencies=needs_token)
    app.include_router(_observe(app, facade), dependencies=needs_token)
    _open(app)
    return app


def small(data: Any, status_code: int = 200) -> Response:
    return Response(encode(data), status_code, media_type="application/json")


def find_node(facade: Facade, name: str) -> Json:
    for node in facade.nodes():
        if node["name"] == name:
            return node
    raise HTTPException(404, f"no node is called {name!r}; GET /api/v1/nodes lists them")


def running_job(facade: Facade) -> Json:
    job = facade.job()
    if job is None or job["state"] not in ACTIVE:
        raise HTTPException(409, "no job is running")
    return job


def _reads(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["look"])

    @api.get("/status", response_model=models.Status, summary="Everything at a glance")
    async def status(request: Request) -> Response:
        data = facade.status()
        return await answer(request, lambda: encode(data))

    @api.get("/nodes", response_model=list[models.Node], summary="All nodes")
    async def nodes(
        request: Request,
        detail: Annotated[bool, Query(description="False: only what a list shows, for large clusters.")] = True,
    ) -> Response:
        rows = facade.nodes()
        if not detail:
            rows = [{key: row[key] for key in models.BRIEF_NODE} for row in rows]
        return await answer(request, lambda: encode(rows))

    @api.get("/nodes/{name}", response_model=models.Node, summary="One node")
    async def node(name: str) -> Response:
        return small(find_node(facade, name))

    @api.get("/nodes/{name}/history", response_model=models.NodeHistory, summary="What speaks for and against a node")
    async def history(name: str) -> Response:
        find_node(facade, name)
        return small(facade.node_history(name))

    @api.get("/nodes/{name}/traffic", response_model=models.Traffic, summary="Millisecond traffic of a node")
    async def traffic(request: Request, name: str, seconds: Seconds = 5.0) -> Response:
        try:
            data = facade.traffic(name, seconds)
        except KeyError:
            find_node(facade, name)
            raise
        return await answer(request, lambda: encode(data))

    @api.get("/job", response_model=models.Job | None, summary="The job; null when there was none yet")
    async def job() -> Response:
        return small(facade.job())

    @api.get("/job/plan", response_model=models.Plan | None, summary="What it does in a step; null until it has told")
    async def plan(request: Request) -> Response:
        data = facade.plan()
        return await answer(request, lambda: encode(data))

    @api.get("/ranks", response_model=models.Ranks, summary="All ranks, as columns")
    async def ranks(request: Request) -> Response:
        data = facade.ranks()
        return await answer(request, lambda: encode(data))

    @api.get("/steps", response_model=models.Steps, summary="Finished steps, as columns")
    async def steps(
        request: Request,
        since: Annotated[int, Query(ge=-1, description="Only steps after this one.")] = -1,
        limit: Annotated[int, Query(ge=1, le=100_000, description="Only the newest so many.")] = 5000,
    ) -> Response:
        data = facade.steps(since=since, limit=limit)
        return await answer(request, lambda: encode(data))

    @api.get("/incidents", response_model=list[models.Incident], summary="All incidents, newest first")
    async def incidents(request: Request) -> Response:
        data = facade.incidents()
        return await answer(request, lambda: encode(data))

    @api.get("/incidents/{incident}", response_model=models.Incident, summary="One incident")
    async def one_incident(incident: str) -> Response:
        for known in facade.incidents():
            if str(known["id"]) == incident:
                return small(known)
        raise HTTPException(404, f"no incident is called {incident!r}; GET /api/v1/incidents lists them")

    return api


def _commands(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["do"])

    @api.post("/jobs", status_code=201, response_model=models.Submitted, summary="Start a job")
    async def submit(spec: models.JobSpec) -> Response:
        job = facade.job()
        if job is not None and job["state"] in ACTIVE:
            raise HTTPException(409, f"job {job['name']!r} is {job['state']}; stop it first: POST /api/v1/job/stop")
        return small({"id": await facade.submit(spec.model_dump())}, 201)

    @api.post("/job/stop", response_model=models.Done, summary="End the running job")
    async def stop(spec: models.StopSpec | None = None) -> Response:
        running_job(facade)
        await facade.stop((spec or models.StopSpec()).grace)
        return small({"ok": True})

    @api.post("/job/restart", response_model=models.Done, summary="Start the running job again from its newest state")
    async def restart(spec: models.RestartSpec | None = None) -> Response:
        running_job(facade)
        await facade.restart((spec or models.RestartSpec()).dump)
        return small({"ok": True})

    @api.post("/job/stacks", response_model=models.Stacks, summary="What all workers are doing, as a tree of calls")
    async def stacks(request: Request) -> Response:
        running_job(facade)
        data = await facade.stacks()
        return await answer(request, lambda: encode(data))

    @api.post("/job/checkpoint", response_model=models.Done, summary="Make a checkpoint of the next step")
    async def checkpoint() -> Response:
        running_job(facade)
        await facade.checkpoint()
        return small({"ok": True})

    @api.post("/inject", response_model=models.Injected, summary="Break something on purpose")
    async def inject(spec: models.FaultSpec) -> Response:
        return small(await facade.inject(spec.fault))

    @api.post("/nodes/{name}/cordon", response_model=models.Done, summary="Take a node out of future generations")
    async def cordon(name: str) -> Response:
        find_node(facade, name)
        await facade.cordon(name, True)
        return small({"ok": True})

    @api.post("/nodes/{name}/uncordon", response_model=models.Done, summary="Let a node in again")
    async def uncordon(name: str) -> Response:
        find_node(facade, name)
        await facade.cordon(name, False)
        return small({"ok": True})

    @api.post("/nodes/{name}/evict", response_model=models.Done, summary="Take a node out at once")
    async def evict(name: str) -> Response:
        find_node(facade, name)
        await facade.evict(name)
        return small({"ok": True})

    return api


STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def _live(facade: Facade, streams: Streams) -> APIRouter:
    api = APIRouter(tags=["live"])

    @api.get("/events", response_class=EventStream, responses=STREAM, summary="Status and steps as they change")
    async def events(
        since: Annotated[int, Query(ge=-1, description="Send the job's steps after this one.")] = -1,
        job: Annotated[str, Query(description="Whose step `since` is: another job's are sent from its first.")] = "",
    ) -> Response:
        """Event `status`: as `/status`; `nodes` and `incidents` are left out where they did not change since the
        status before. Event `steps`: new rows as `/steps` gives them, and `job`, the id. A step that is not after
        the one before it means that the job went back: forget the later ones. Comments keep the line alive."""
        return EventStream(streams.status(since, job))

    @api.get("/job/logs", response_class=EventStream, responses=STREAM, summary="The job's log, live")
    async def logs() -> Response:
        """Event `line`: `{rank, stream, text, generation, dropped}`, beginning with the retained tail. Event `end`:
        the job has ended and all was sent."""
        job = facade.job()
        if job is None:
            raise HTTPException(404, "no job was submitted yet")
        return EventStream(streams.logs(facade.log_lines(job["id"])))

    return api


def _observe(app: FastAPI, facade: Facade) -> APIRouter:
    api = APIRouter(tags=["observe"])
    metrics = Metrics()

    @api.get("/metrics", summary="For Prometheus", responses={200: {"content": {"text/plain": {}}}})
    async def prometheus(request: Request) -> Response:
        scrape = metrics.scrape(facade)
        return await answer(request, scrape, CONTENT_TYPE)

    @api.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        return small(app.openapi())

    return api


def _open(app: FastAPI) -> None:
    @app.get("/healthz", tags=["observe"], summary="Whether the controller's loop turns; needs no token")
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=PAGE), name="static")
