"""Blocking work beside an event loop: a thread of its own for each, so that one that hangs blocks no other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, or what it raised. Cancelled, it no longer waits; the thread runs to its end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # None only where T is

    def body() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # whatever it is, it is the waiting task's to raise
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, name="holdfast-work", daemon=True).start()
    return await answer
