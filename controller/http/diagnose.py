"""Diagnoses over HTTP: ask for one, look at those that run and those that ended."""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from holdfast.base.json_text import encode
from holdfast.controller.http.facade import Facade
from holdfast.diagnostics.catalog.catalog import BY_NAME, MOST_PASSES


class DiagnoseSpec(BaseModel):
    model_config = ConfigDict(extra="forbid")
    nodes: list[str] = Field(default=[], description="Names of nodes; empty: all idle nodes.")
    suite: Literal["quick", "full"] = Field(default="quick", description="quick takes under 1 minute, full under 10.")
    tests: list[str] = Field(
        default=[], description="Only these tests.", json_schema_extra={"items": {"type": "string", "enum": [*BY_NAME]}}
    )
    busy: bool = Field(default=False, description="Also run on nodes that train; this slows the job down.")
    passes: int = Field(
        default=0, ge=0, le=MOST_PASSES,
        description="Tests of pairs without a failure after which a node or a link has passed; 0: 2 in quick, 8 in"
        " full. One that fails with probability 0.5 is missed with probability 0.5 to this power.",
    )  # fmt: skip


class Begun(BaseModel):
    id: str = Field(description="Read it with GET /api/v1/diagnoses/ID.")


class Verdict(BaseModel):
    """One figure or fact of one node."""

    model_config = ConfigDict(extra="allow")
    node: str
    check: str
    grade: Literal["pass", "degraded", "fail", "unable"] = Field(description="`unable`: it could not run; no pass.")
    severity: Literal["info", "warning", "critical"]
    metric: str
    component: str
    value: float | None
    unit: str
    bar: float | None = Field(description="The fixed limit, if there is one.")
    against: str = Field(description="What decided: bar, peers, past or fault.")
    baseline: float | None = Field(description="The median of the baseline.")
    baseline_n: int
    baseline_since: float = Field(description="Unix seconds of the oldest value in the baseline; 0: of this diagnosis.")
    text: str
    evidence: dict[str, Any] = Field(description="What the check measured besides.")
    action: str = Field(description="What to do about it.")


class DiagnosisBrief(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str
    why: str
    state: Literal["running", "done"]
    suite: str
    tests: list[str]
    nodes: list[str]
    stage: Literal["nodes", "repeat", "pairs", "neighbours", "done"]
    rounds: int = Field(description="Rounds of pairs so far.")
    jobs_done: int
    jobs_open: int
    began: float | None
    ended: float | None
    failed: list[str]
    cleared: list[str] = Field(description="Nodes that passed all their tests.")


class Diagnosis(DiagnosisBrief):
    verdicts: list[Verdict] = Field(description="Empty until the diagnosis is done.")


def routes(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["diagnose"])

    @api.post("/diagnose", status_code=201, response_model=Begun, summary="Run diagnostics")
    async def diagnose(spec: DiagnoseSpec) -> Response:
        id = await facade.diagnose(spec.model_dump())
        return Response(encode({"id": id}), 201, media_type="application/json")

    @api.get("/diagnoses", response_model=list[DiagnosisBrief], summary="All diagnoses, newest first")
    async def diagnoses() -> Response:
        brief = [{key: value for key, value in one.items() if key != "verdicts"} for one in facade.diagnoses()]
        return Response(encode(brief), media_type="application/json")

    @api.get("/diagnoses/{id}", response_model=Diagnosis, summary="One diagnosis")
    async def one(id: str) -> Response:
        for known in facade.diagnoses():
            if known["id"] == id:
                # A large cluster's verdicts take a while to encode: heartbeats are heard meanwhile.
                return Response(await asyncio.to_thread(encode, known), media_type="application/json")
        raise HTTPException(404, f"no diagnosis is called {id!r}; GET /api/v1/diagnoses lists them")

    return api
