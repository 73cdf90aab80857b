"""The HTTP server inside the controller's own event loop: it leaves the signals alone and stops at once."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI

from holdfast.base.address import format_address
from holdfast.base.errors import HoldfastError, UsageError
from holdfast.controller.http.connections import Listener, Protocol

STOP_S = 2.0
"""How long a stop waits for requests under way."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # the daemon around the server owns the signals

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams never end by themselves, and uvicorn notifies the application only after the last one did.
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.streams.close()
        await super().shutdown(sockets)


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 7080,
    certfile: Path | None = None,
    keyfile: Path | None = None,
) -> AsyncIterator[int]:
    """Serve `app` while the block runs; gives the port (`port` 0 takes a free one). UsageError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        address = format_address(host, port)
        raise UsageError(f"cannot listen on {address}: {error.strerror}; give another --http-port") from error
    listener.setblocking(False)
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(Protocol, listener=listener)),
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=int(STOP_S),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise HoldfastError("the HTTP server did not start") from task.exception()
            await asyncio.sleep(0.01)
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        await asyncio.wait({task})
        listener.close()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
