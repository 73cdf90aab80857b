"""What every request and answer goes through: refusal of foreign pages, and the security headers."""

from collections.abc import AsyncGenerator

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.controller.auth import Auth
from holdfast.controller.json_text import encode

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
                # Answers tell of this instant; the page's files are checked for a newer version at every load.
                fixed = scope["path"] == "/" or scope["path"].startswith("/static/")
                headers["Cache-Control"] = "no-cache" if fixed else "no-store"
            await send(message)

        headers = Headers(scope=scope)
        problem = self._auth.foreign(headers.get("host"), headers.get("origin"))
        if problem is None:
            await self._app(scope, receive, send_guarded)
            return
        body = encode({"error": problem})
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send_guarded({"type": "http.response.start", "status": 403, "headers": fields})
        await send_guarded({"type": "http.response.body", "body": body})


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
