"""Answers: short ones at once, those that take a while to make written and compressed in a thread."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response

from holdfast.base.json_text import encode

SMALL = 4096
"""Bytes below which an answer is not worth compressing."""


def small(data: Any, status_code: int = 200) -> Response:
    return Response(encode(data), status_code, media_type="application/json")


async def answer(request: Request, make: Callable[[], bytes], media_type: str = "application/json") -> Response:
    """What `make` returns, encoded and compressed in a thread: the event loop reads heartbeats meanwhile."""
    packed = "gzip" in request.headers.get("accept-encoding", "")

    def work() -> tuple[bytes, bool]:
        body = make()
        if not packed or len(body) < SMALL:
            return body, False
        return gzip.compress(body, compresslevel=1, mtime=0), True

    body, compressed = await asyncio.to_thread(work)
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    return Response(body, media_type=media_type, headers={"Vary": "Accept-Encoding", **headers})
