"""Requests to the HTTP API, without a socket."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import httpx
from fastapi import FastAPI

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from tests.controller.support.fake_facade import FakeFacade

TOKEN = "s3cret"


def talk(app: FastAPI, story: Callable[[httpx.AsyncClient], Any], **options: Any) -> Any:
    """Runs `story`, a coroutine, with a client of `app`, without a socket."""

    async def run() -> Any:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7080", **options) as client:
            return await story(client)

    return asyncio.run(run())


@functools.lru_cache(maxsize=1)  # the facade of one test at a time
def _app(facade: FakeFacade, auth: Auth | None) -> FastAPI:
    """Making one takes longer than most requests."""
    return create_app(facade, auth or Auth())


def ask(facade: FakeFacade, method: str, path: str, auth: Auth | None = None, **request: Any) -> httpx.Response:
    return talk(_app(facade, auth), lambda client: client.request(method, path, **request))


def error(answer: httpx.Response) -> str:
    assert answer.json().keys() == {"error"}
    line = answer.json()["error"]
    assert "\n" not in line
    return str(line)
