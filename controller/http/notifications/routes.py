"""Acknowledge a failed job; test the receivers."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.base.errors import Conflict
from holdfast.controller.http import models
from holdfast.controller.http.answer import small
from holdfast.controller.http.facade import Facade
from holdfast.controller.http.jobs import lookup


class NotifySpec(BaseModel):
    receiver: str = Field(default="", max_length=256, description="Name of a receiver; empty: all.")


class NotifyAnswer(BaseModel):
    receiver: str
    ok: bool = Field(description="Whether the receiver took the message.")
    answer: str = Field(description="What it answered, or why it was not reached.")


def routes(facade: Facade) -> APIRouter:
    api = APIRouter(tags=["do"])

    @api.post("/jobs/{id}/ack", response_model=models.Done, summary="Acknowledge a failed job: its alert ends")
    async def acknowledge(id: Annotated[str, Path(max_length=256)]) -> Response:
        found = lookup(facade, id)
        if found is not None:
            await facade.acknowledge(str(found["id"]))
            return small({"ok": True})
        try:
            await facade.acknowledge(id)  # its alert may outlive the job in memory
        except Conflict:
            raise HTTPException(404, f"no job is called {id!r}; GET /api/v1/jobs lists them") from None
        return small({"ok": True})

    @api.post("/notify/test", response_model=list[NotifyAnswer], summary="Send a marked test message to the receivers")
    async def test(spec: NotifySpec | None = None) -> Response:
        name = (spec or NotifySpec()).receiver
        try:
            answers = await facade.notify_test(name)
        except KeyError:
            raise HTTPException(404, f"no receiver is called {name!r}; the setting `notify` has them") from None
        return small(answers)

    return api
