"""Requests to the HTTP API, without a socket."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, cast

import httpx
from fastapi import FastAPI

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.facade import Facade
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


class _Behind:
    """Who answers, and who is let in, of the one application that all requests go to."""

    def __init__(self) -> None:
        self.now: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


_FACADE, _AUTH = _Behind(), _Behind()


@functools.cache
def _app() -> FastAPI:
    return create_app(cast(Facade, _FACADE), cast(Auth, _AUTH))


def app_of(facade: Facade, auth: Auth | None = None) -> FastAPI:
    """An application around it, until this is called again: making one takes longer than many requests. It is none for
    streams, which are their application's."""
    _FACADE.now, _AUTH.now = facade, auth or Auth()
    return _app()


def ask(facade: FakeFacade, method: str, path: str, auth: Auth | None = None, **request: Any) -> httpx.Response:
    return talk(app_of(facade, auth), lambda client: client.request(method, path, **request))


def error(answer: httpx.Response) -> str:
    assert answer.json().keys() == {"error"}
    line = answer.json()["error"]
    assert "\n" not in line
    return str(line)
