"""Gives workers of jobs that share this node their turns, slot by slot (`holdfast.wire.turns`)."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.base import log, private
from holdfast.planner.sharing.turns import Turns
from holdfast.wire import messages as msg
from holdfast.wire import turns as wire

NAME = "turns.sock"
_MOST = 1024
"""Connections."""
_HELLO_S = 10.0


class _Slot:
    """One slot's turns, and the connections of the workers there, by job."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.writers: dict[str, asyncio.StreamWriter] = {}
        self.modes: dict[str, bytes] = {}
        self.alarm: asyncio.TimerHandle | None = None


class TurnServer:
    """Whoever may open the folder may take part: it is the agent's user's."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = folder / NAME
        self._clock = clock
        self._slots: dict[int, _Slot] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """No-op when it is. Where it can't be, workers run without turns."""
        if self._server is not None:
            return
        private.shared_folder(self.path.parent)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self.path, limit=wire.MAX_LINE)
        except OSError as error:
            log.warning("turns.closed", path=str(self.path), error=str(error))

    def environment(self, order: msg.StartWorkers, place: msg.Rank) -> dict[str, str]:
        """For a worker; empty where its job shares nothing."""
        if wire.SHARES not in order.program.env:
            return {}
        return {wire.VARIABLE: f"{place.local_rank}:{self.path}"}

    async def close(self) -> None:
        """Workers go on without turns."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()
        self._server = None
        for slot in self._slots.values():
            if slot.alarm is not None:
                slot.alarm.cancel()
        self._slots.clear()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) <= _MOST:
                await self._worker(reader, writer)
        except (OSError, ValueError, TimeoutError) as error:
            log.debug("turns.left", error=str(error))
        finally:
            self._open.discard(writer)
            with suppress(RuntimeError):  # the loop may be closed
                writer.close()

    async def _worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await asyncio.wait_for(reader.readline(), _HELLO_S)).decode()
        job, _, number = line.strip().rpartition(" ")
        if not job or not number.isdecimal() or len(number) > 6:
            raise ValueError(f"no job and slot: {line[:40]!r}")
        slot = self._slots.setdefault(int(number), _Slot())
        slot.turns.joined(job, self._clock())
        slot.writers[job] = writer
        slot.modes.pop(job, None)
        self._go_on(slot)
        try:
            while data := await reader.read(64):
                if slot.writers.get(job) is not writer:
                    return  # a later worker of the job took its place
                for byte in data:
                    if byte == wire.ASK[0]:
                        slot.turns.asked(job, self._clock())
                    elif byte == wire.BACK[0]:
                        slot.turns.gave_back(job, self._clock())
                self._go_on(slot)
        finally:
            if slot.writers.get(job) is writer:
                del slot.writers[job]
                slot.modes.pop(job, None)
                slot.turns.left(job, self._clock())
                self._go_on(slot)

    def _go_on(self, slot: _Slot) -> None:
        """Give the next turn, say who is alone, and look again when the turn under way has lasted too long."""
        turns, before = slot.turns, slot.turns.overdue
        mode = wire.SHARED if turns.is_shared else wire.ALONE
        for job, writer in slot.writers.items():
            if slot.modes.get(job) != mode:
                slot.modes[job] = mode
                writer.write(mode)
        name = turns.next(self._clock())
        if turns.overdue > before:
            log.warning("turn.overdue", next=name or "", times=turns.overdue)
        if name is not None:
            slot.writers[name].write(wire.TURN)
        if slot.alarm is not None:
            slot.alarm.cancel()
            slot.alarm = None
        if turns.holder is not None and turns.is_shared:
            later = max(0.0, turns.ends_by - self._clock())
            slot.alarm = asyncio.get_running_loop().call_later(later, self._go_on, slot)
