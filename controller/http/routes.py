"""The HTTP API: a thin layer around the facade. Every error is one JSON shape, `{"error": "one clear line"}`.

The page's own files and `/healthz` are open, so that a browser can load the page that asks for the token; all else
needs it.
"""

import logging
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

import holdfast
from holdfast.base.errors import Conflict, NotFound
from holdfast.base.json_text import encode
from holdfast.controller.detectors.base.table import rows as findings
from holdfast.controller.http import errors as http_errors
from holdfast.controller.http import models
from holdfast.controller.http.answer import answer, small
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.diagnose import routes as diagnose_routes
from holdfast.controller.http.facade import Facade, Json
from holdfast.controller.http.guard import EventStream, Guard
from holdfast.controller.http.jobs import find_job
from holdfast.controller.http.jobs import routes as job_routes
from holdfast.controller.http.metrics import CONTENT_TYPE, Metrics
from holdfast.controller.http.notifications.routes import routes as notification_routes
from holdfast.controller.http.notifications.runbook import serve_runbook
from holdfast.controller.http.streams import Streams, stream

log = logging.getLogger(__name__)

PAGE = Path(__file__).parents[1] / "page"
AROUND = 2
"""Steps before and after an incident that are shown with it."""
Seconds = Annotated[float, Query(gt=0, le=600)]


class EarlierIncident(BaseModel):
    id: str
    kind: str
    culprit: str
    opened: float
    summary: str
    same: list[Literal["node", "rank", "traceback"]] = Field(description="In common with the one asked for.")


class StepsAround(BaseModel):
    first: int
    last: int
    generation: int = Field(description="In which the fault was.")


class WholeIncident(models.Incident):
    around: StepsAround | None = Field(description="Steps around it, of which spans may be kept; null where none are.")
    earlier: list[EarlierIncident] = Field(description="Of the same node, rank or traceback: the newest 10.")


class RunbookEntry(BaseModel):
    kind: str
    means: str
    does: str = Field(description="What Holdfast does about it: `Holdfast ...`.")
    you: str = Field(description="What a person can do.")


def create_app(facade: Facade, auth: Auth) -> FastAPI:
    """The application around one controller. `app.state.streams.close()` ends its event streams (see `serve`)."""
    app = FastAPI(
        title="Holdfast controller",
        version=holdfast.__version__,
        description="State of the cluster, its jobs and incidents; commands; live events; metrics.",
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
    app.include_router(job_routes(facade, app.state.streams), prefix="/api/v1", dependencies=needs_token)
    app.include_router(notification_routes(facade), prefix="/api/v1", dependencies=needs_token)
    app.include_router(_live(facade, app.state.streams), prefix="/api/v1", dependencies=needs_token)
    app.include_router(_observe(app, facade), dependencies=needs_token)
    _open(app)
    return app


def find_node(facade: Facade, name: str) -> Json:
    for node in facade.nodes():
        if node["name"] == name:
            return node
    raise HTTPException(404, f"no node is called {name!r}; GET /api/v1/nodes lists them")


def _reads(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["look"])

    @api.get("/status", response_model=models.Status, summary="Status of the cluster")
    async def status(request: Request) -> Response:
        data = facade.status()
        return await answer(request, lambda: encode(data))

    @api.get("/nodes", response_model=list[models.Node | models.NodeBrief], summary="All nodes")
    async def nodes(
        request: Request,
        detail: Annotated[bool, Query(description="False: only the columns of a list, for large clusters.")] = True,
    ) -> Response:
        rows = facade.nodes()
        if not detail:
            rows = [{key: row[key] for key in models.BRIEF_NODE} for row in rows]
        return await answer(request, lambda: encode(rows))

    @api.get("/nodes/{name}", response_model=models.Node, summary="One node")
    async def node(name: str) -> Response:
        return small(find_node(facade, name))

    @api.get("/nodes/{name}/history", response_model=models.NodeHistory, summary="Failures and verdicts of a node")
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

    @api.get("/incidents", response_model=list[models.Incident], summary="All incidents, newest first")
    async def incidents(request: Request) -> Response:
        data = facade.incidents()
        return await answer(request, lambda: encode(data))

    @api.get("/incidents/{incident}", response_model=WholeIncident, summary="One incident")
    async def one_incident(incident: str) -> Response:
        for known in facade.incidents():
            if str(known["id"]) == incident:
                return small(known | {"earlier": facade.earlier(incident), "around": _around(facade, known)})
        raise HTTPException(404, f"no incident is called {incident!r}; GET /api/v1/incidents lists them")

    @api.get("/runbook/{kind}", response_model=RunbookEntry, summary="The runbook's entry for a kind of finding")
    async def runbook(kind: str) -> Response:
        row = next((row for known, row in findings().items() if known.value == kind), None)
        if row is None:
            raise HTTPException(404, f"the runbook has no entry {kind!r}")
        return small({"kind": kind, "means": row.means, "does": f"Holdfast {row.does}", "you": row.you})

    return api


def _around(facade: Facade, incident: Json) -> Json | None:
    """`StepsAround` of an incident."""
    step, job = incident["step_at_fault"], incident["job"]
    if not job or step is None or step < 0:
        return None
    first, last = max(0, step - AROUND), step + AROUND
    try:
        facade.spans(job, first, last)  # reads nothing yet
    except (NotFound, Conflict):
        return None
    generation = incident["generation_from"]
    return {"first": first, "last": last, "generation": -1 if generation is None else generation}


def _commands(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["do"])

    @api.post("/nodes/{name}/cordon", response_model=models.Done, summary="Cordon a node")
    async def cordon(name: str) -> Response:
        find_node(facade, name)
        await facade.cordon(name, True)
        return small({"ok": True})

    @api.post("/nodes/{name}/uncordon", response_model=models.Done, summary="Uncordon a node")
    async def uncordon(name: str) -> Response:
        find_node(facade, name)
        await facade.cordon(name, False)
        return small({"ok": True})

    @api.post("/nodes/{name}/evict", response_model=models.Done, summary="Evict a node")
    async def evict(name: str) -> Response:
        find_node(facade, name)
        await facade.evict(name)
        return small({"ok": True})

    return api


def _live(facade: Facade, streams: Streams) -> APIRouter:
    api = APIRouter(tags=["live"])

    @api.get(
        "/events",
        response_class=EventStream,
        responses=stream("status", "steps"),
        summary="Status and steps as they change",
    )
    async def events(
        job: Annotated[str, Query(max_length=256, description="Job to follow; empty: always the newest.")] = "",
        since: Annotated[int, Query(ge=-1, description="Send the job's steps after this one.")] = -1,
        since_job: Annotated[
            str,
            Query(max_length=256, description="Id of the job of `since`; another job's steps are sent from its first."),
        ] = "",
    ) -> Response:
        """Event `status`: as `/status`, but `job` is the one that is followed, and `jobs`, `nodes` and `incidents` are
        left out where they did not change since the status before, and so is the `assignment` of `job`; the rows of
        `jobs` have no `nodes`. A listener gets at most some 12 kB of them a second. Event `steps`: new rows as `/steps`
        gives them, and `job`, the id. A step that is not after the one before it means that the job went back: forget
        the later ones.
        Comments keep the line alive."""
        id = str(find_job(facade, job)["id"]) if job else ""
        return EventStream(streams.status(since, since_job, id))

    return api


def _observe(app: FastAPI, facade: Facade) -> APIRouter:
    api = APIRouter(tags=["observe"])
    metrics = Metrics()

    @api.get("/metrics", response_class=PlainTextResponse, summary="For Prometheus")
    async def prometheus(request: Request) -> Response:
        scrape = metrics.scrape(facade)
        return await answer(request, scrape, CONTENT_TYPE)

    @api.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        return small(app.openapi())

    return api


def _open(app: FastAPI) -> None:
    @app.get("/healthz", tags=["observe"], summary="Health of the controller's event loop; needs no token")
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    serve_runbook(app)
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
