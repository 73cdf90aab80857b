"""What every request and answer goes through: the token and the sender before anything of a body is read, the size
and the time of the body, and the security headers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.base.json_text import encode
from holdfast.controller.http.auth import Auth, Refusal

BODY_BYTES = 1 << 20
"""The longest body that is taken: a job with its environment has some kB."""
BODY_S = 10.0
"""How long a body may take to arrive."""
_LINGER_S = 1.0
"""How long a refused body is read on and forgotten: closed at once, the client would see a reset, not the answer."""

SECURITY = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware. Not Starlette's base class: that one puts a queue between a stream and its client."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY)
                # Answers show this instant's state; the page's files are checked for a newer version at every load.
                fixed = scope["path"] in ("/", "/runbook") or scope["path"].startswith("/static/")
                headers["Cache-Control"] = "no-cache" if fixed else "no-store"
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._auth.refusal(scope["method"], scope["path"], headers)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if refusal is None and has_body:
            whole = await _body(headers, receive)
            if isinstance(whole, bytes):
                receive = _replayed(whole, receive)
            else:
                refusal = whole
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            await _refuse(refusal, has_body, receive, send_guarded)


async def _body(headers: Headers, receive: Receive) -> bytes | Refusal:
    """The whole body, if it is short enough and comes in time."""
    too_long = Refusal(413, f"the body is longer than {BODY_BYTES >> 20} MiB, the limit", {})
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > BODY_BYTES:
        return too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return Refusal(400, "the connection closed before the end of the body", {})
                body += message.get("body", b"")
                if len(body) > BODY_BYTES:
                    return too_long
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return Refusal(408, f"the body did not arrive within {BODY_S:g} s", {})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then what comes: that the client has gone."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(refusal: Refusal, has_body: bool, receive: Receive, send: Send) -> None:
    """Answer at once. With a body on its way the connection ends: there is no other way not to take it."""
    body = encode({"error": refusal.text})
    fields = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    if has_body:
        fields["connection"] = "close"
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": has_body})
    if has_body:
        left = BODY_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (message := await receive()).get("more_body", False):
                    left -= len(message.get("body", b""))
        await send({"type": "http.response.body"})


class EventStream(StreamingResponse):
    """Server-sent events; closes its generator as soon as the client has gone."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["X-Accel-Buffering"] = "no"  # nginx would hold the events back
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()
