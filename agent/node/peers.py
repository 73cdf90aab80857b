"""Connectivity between agents. Every agent has a listener that sends one word; peers probe it when the controller asks.

The word comes from the agent's own event loop: a frozen agent's kernel still takes the connection, but says nothing.
"""

import asyncio
from contextlib import suppress

from holdfast.base import log

WORD = b"holdfast\n"
PATIENCE = 1.5  # seconds


class ProbeListener:
    """Sends the word on every connection, and nothing else. Reads nothing."""

    def __init__(self) -> None:
        self.port = 0
        """Where it is; 0 while it is not open."""
        self._server: asyncio.Server | None = None

    async def open(self, host: str) -> None:
        """If that fails, peers cannot distinguish a cut network from a dead host; the agent runs all the same."""
        try:
            self._server = await asyncio.start_server(self._say, host, 0)
        except OSError as error:
            log.warning("probe_listener.closed", host=host, error=str(error))
            return
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(WORD)
            await writer.drain()
        writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server, self.port = None, 0


async def probe_peer(host: str, port: int, patience: float = PATIENCE) -> str:
    """What is behind the address of a peer: "answers", "frozen" (accepted, but no answer), "refused" (the host is up,
    its agent is not) or "unreachable"."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), patience)
    except ConnectionRefusedError:
        return "refused"
    except (OSError, TimeoutError):
        return "unreachable"
    try:
        word = await asyncio.wait_for(reader.read(len(WORD)), patience)
    except (OSError, TimeoutError):
        return "frozen"
    finally:
        writer.close()
    return "answers" if word == WORD else "refused"
