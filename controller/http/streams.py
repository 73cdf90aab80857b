"""Server-sent events. One watcher of the cluster's version serves all listeners and sleeps when there is none.

A listener that reads slowly skips states, never steps: each takes the newest state when it is ready for one,
and steps from where it stands.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.json_text import encode
from holdfast.controller.http.facade import Facade, Json

PERIOD_S = 0.2
"""At most one state in this time."""
HEARTBEAT_S = 10.0
"""A comment line at least this often, so that both ends notice a dead connection."""
HEARTBEAT = b": alive\n\n"


def event(name: str, payload: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


@dataclass(frozen=True, slots=True)
class State:
    """One encoded status, shared by all listeners. The bulky parts stand apart, to be sent when they change."""

    version: int
    job: str
    step: int
    over: bool
    core: bytes
    nodes: bytes
    incidents: bytes

    @classmethod
    def of(cls, facade: Facade) -> "State":
        version, status = facade.version(), dict(facade.status())
        nodes, incidents = status.pop("nodes", {}), status.pop("incidents", [])
        job: Json = status.get("job") or {}
        step = job.get("step")
        return cls(
            version=version,
            job=str(job.get("id", "")),
            step=-1 if step is None else int(step),
            over=job.get("state") in ("finished", "failed", "stopped"),
            core=encode(status),
            nodes=encode(nodes),
            incidents=encode(incidents),
        )

    def since(self, before: "State | None") -> bytes:
        """The status event for a listener that saw `before`: node and incident tables only where they changed."""
        parts = [self.core[:-1]]
        if before is None or before.nodes != self.nodes:
            parts.append(b'"nodes":' + self.nodes)
        if before is None or before.incidents != self.incidents:
            parts.append(b'"incidents":' + self.incidents)
        return event("status", b",".join(parts) + b"}")


class Streams:
    """All open event streams of one server."""

    def __init__(self, facade: Facade, period_s: float = PERIOD_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._facade = facade
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._state: State | None = None
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self.listeners = 0

    def close(self) -> None:
        """Ends all streams at once: a server that stops must not wait for its listeners."""
        self._closing.set()
        self._changed.set()

    async def status(self, since: int = -1, job: str = "") -> AsyncGenerator[bytes]:
        """Status on every change, and the steps after `since` of `job`; all of them where another job runs now.

        The newest step is sent once more with the next one, or with the job's end: when it was sent first, not all
        ranks had told of it, perhaps not the one that knows the loss.
        """
        self._join()
        try:
            seen: State | None = None
            sent = False
            while not self._closing.is_set():
                state, changed = self._state, self._changed
                if state is not None and state is not seen:
                    if job and state.job != job:
                        since, sent = -1, False
                    since = min(since, state.step)  # the job went back to a snapshot: its steps are done again
                    yield state.since(seen)
                    ended = state.over and seen is not None and not seen.over
                    if state.step > since or (sent and ended):
                        rows = self._facade.steps(since=since - sent)
                        yield event("steps", encode({"job": state.job, **rows}))
                        since, sent = max([since, *rows["step"][-1:]]), True
                    seen, job = state, state.job
                try:
                    await asyncio.wait_for(changed.wait(), self._heartbeat_s)
                except TimeoutError:
                    yield HEARTBEAT
        finally:
            self._leave()

    async def logs(self, lines: AsyncIterator[Json]) -> AsyncGenerator[bytes]:
        """Log lines as they come, then one `end`."""
        closing = asyncio.ensure_future(self._closing.wait())
        line: asyncio.Future[Json] | None = None
        try:
            while not closing.done():
                line = line or asyncio.ensure_future(anext(lines))
                either: set[asyncio.Future[Any]] = {line, closing}
                await asyncio.wait(either, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if not line.done():
                    yield HEARTBEAT
                    continue
                try:
                    yield event("line", encode(line.result()))
                except StopAsyncIteration:
                    yield event("end", b"{}")
                    return
                line = None
        finally:
            closing.cancel()
            if line is not None and not line.done():
                line.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await line
            if isinstance(lines, AsyncGenerator):
                await lines.aclose()

    def _join(self) -> None:
        self.listeners += 1
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    def _leave(self) -> None:
        self.listeners -= 1
        if self.listeners == 0 and self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
            self._state = None  # old by the time the next listener comes

    async def _watch(self) -> None:
        while True:
            if self._state is None or self._facade.version() != self._state.version:
                self._state = State.of(self._facade)
                # Each wave of waiters has an event of its own: nobody can miss a change or see one twice.
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(self._period_s)
