"""Answers: short ones at once, those that take a while to make written and compressed in a thread.

The latter have an ETag: whoever asks again with it gets 304 and no body while nothing has changed.
"""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

import xxhash
from fastapi import Request, Response

from holdfast.base.json_text import encode

SMALL = 4096
"""Bytes below which an answer is not worth compressing."""


def small(data: Any, status_code: int = 200) -> Response:
    return Response(encode(data), status_code, media_type="application/json")


async def answer(request: Request, make: Callable[[], bytes], media_type: str = "application/json") -> Response:
    """What `make` returns, encoded and compressed in a thread: the event loop reads heartbeats meanwhile."""
    packed = "gzip" in request.headers.get("accept-encoding", "")
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}

    def work() -> tuple[bytes | None, dict[str, str]]:
        body = make()
        tag = f'W/"{xxhash.xxh3_128_hexdigest(body)}"'  # weak: with and without compression it is the same answer
        headers = {"ETag": tag, "Vary": "Accept-Encoding"}
        if tag in known:
            return None, headers
        if not packed or len(body) < SMALL:
            return body, headers
        return gzip.compress(body, compresslevel=1, mtime=0), {**headers, "Content-Encoding": "gzip"}

    body, headers = await asyncio.to_thread(work)
    if body is None:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
