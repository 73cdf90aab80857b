"""A timer of the event loop that calls a function again and again, without a task that would have to be woken."""

import asyncio
from collections.abc import Callable


async def beat(step: Callable[[float], float], wait: float) -> None:
    """Call `step` with the time at which it was due, first in `wait` seconds; it says how many later it is due again.

    What is late is not caught up with. Ends by cancellation, or with the error that `step` raised.

    A task that sleeps takes two turns of the loop to go on, one for its sleep's end and one for itself, and each turn
    asks the kernel for events: for a few looks a second that is a good part of what they cost.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def turn(due: float) -> None:
        nonlocal timer
        try:
            due = max(due + step(due), loop.time())
        except Exception as error:
            if not failed.done():  # cancelled just now
                failed.set_exception(error)
            return
        timer = loop.call_at(due, turn, due)

    first = loop.time() + wait
    timer = loop.call_at(first, turn, first)
    try:
        await failed
    finally:
        timer.cancel()
