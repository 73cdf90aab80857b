"""A link with a round-trip time: a relay in front of a server, whose bytes arrive later, in both directions.

Each byte is late by half the round-trip time, in its order, and waits for no reply: like a long wire, unlike a server
that sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress

from holdfast.base.address import parse_address

PIECE_BYTES = 1 << 16
STOP_S = 10.0


@contextmanager
def delayed(address: str, round_trip_s: float) -> Iterator[str]:
    """The address of a relay to the server at `address`, HOST:PORT, while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = _Relay(address, round_trip_s / 2)
    try:
        yield asyncio.run_coroutine_threadsafe(relay.start(), loop).result(STOP_S)
    finally:
        asyncio.run_coroutine_threadsafe(relay.stop(), loop).result(STOP_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S)
        loop.close()


class _Relay:
    def __init__(self, address: str, one_way_s: float) -> None:
        self._target, self._one_way_s = parse_address(address), one_way_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._relay(reader, writer))

    def _begin(self, body: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, forth), self._pump(back, writer), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until its end."""
        loop = asyncio.get_running_loop()
        wire = asyncio.Queue[tuple[float, bytes]]()

        async def arrive() -> None:
            while (piece := await wire.get())[1]:
                await asyncio.sleep(piece[0] - loop.time())
                writer.write(piece[1])
                await writer.drain()

        arriving = loop.create_task(arrive())
        try:
            with suppress(OSError):  # the end of one that was killed
                while piece := await reader.read(PIECE_BYTES):
                    wire.put_nowait((loop.time() + self._one_way_s, piece))
            wire.put_nowait((0.0, b""))
            with suppress(OSError):
                await arriving
        finally:
            arriving.cancel()
            writer.close()
