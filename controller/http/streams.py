"""Server-sent events. One watcher of the cluster's version serves all listeners and sleeps when there is none.

A listener that reads slowly skips states, never steps: each takes the newest state when it is ready for one,
and steps from where it stands.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from holdfast.base.json_text import encode
from holdfast.controller.http.facade import Facade, Json

PERIOD_S = 0.2
"""At most one state in this time."""
RATE = 12_000.0
"""Bytes a second of status events to one listener: of a large cluster, states are skipped."""
LONGEST_S = 1.0
"""However large an event was, the next one is not later than this."""
HEARTBEAT_S = 10.0
"""A comment line at least this often, so that both ends notice a dead connection."""
HEARTBEAT = b": alive\n\n"


def event(name: str, payload: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


class LogLine(BaseModel):
    """The data of an event `line` of a job's log, and of an event `unfinished`: what a line without an end shows so
    far, a progress bar or a question. The line itself follows when it ends."""

    at: float = Field(description="When the controller received it.")
    node: str = Field(description="The node of the rank in that generation.")
    rank: int
    stream: Literal["out", "err"]
    text: str
    generation: int
    dropped: int = Field(description="Lines that were left out before this one.")
    unfinished: bool = Field(default=False, description="The name of the event says the same.")


class SaidFirst(BaseModel):
    rank: int
    node: str
    at: float
    generation: int


class SaidBy(BaseModel):
    """Who said a line, of all lines that the controller keeps."""

    masked: str = Field(description="The line with # in place of numbers, times and addresses.")
    ranks: list[int]
    lines: int
    first: SaidFirst | None


def stream(*events: str) -> dict[int | str, dict[str, Any]]:
    """What `/openapi.json` says of a stream's answer: the schema is that of one event."""
    one = {
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"enum": list(events)},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    }
    return {200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": one}}}}


@dataclass(frozen=True, slots=True)
class Followed:
    """One job as a status event has it."""

    id: str
    step: int
    over: bool
    text: bytes
    """Without its assignment: a line for each node, which changes only with a generation."""
    assignment: bytes

    @classmethod
    def of(cls, job: Json | None) -> "Followed":
        known = job or {}
        step = known.get("step")
        return cls(
            id=str(known.get("id", "")),
            step=-1 if step is None else int(step),
            over=known.get("state") in ("finished", "failed", "stopped"),
            text=encode({key: value for key, value in job.items() if key != "assignment"} if job else None),
            assignment=encode(known.get("assignment")),
        )

    def since(self, before: "Followed | None") -> bytes:
        """As JSON, for a listener that has seen `before`."""
        if not self.id or (before is not None and (before.id, before.assignment) == (self.id, self.assignment)):
            return self.text
        return self.text[:-1] + b',"assignment":' + self.assignment + b"}"


class StreamState:
    """One encoded status, shared by all listeners. The bulky parts stand apart, to be sent when they change."""

    def __init__(self, facade: Facade) -> None:
        self._facade = facade
        self.version, status = facade.version(), dict(facade.status())
        self._jobs: dict[str, Followed] = {"": Followed.of(status.pop("job", None))}
        """By the id that a listener named; empty: the newest."""
        status["jobs"] = [{key: row[key] for key in row if key != "nodes"} for row in status.get("jobs", ())]
        self.parts = {name: encode(status.pop(name)) for name in ("jobs", "nodes", "incidents") if name in status}
        self.core = encode(status)

    def job(self, id: str) -> Followed:
        """The job that a listener follows. It is read when the first of them needs it."""
        if id not in self._jobs:
            try:
                self._jobs[id] = Followed.of(self._facade.job(id))
            except KeyError:  # it ended long ago, and the controller has let go of it
                self._jobs[id] = Followed.of(None)
        return self._jobs[id]

    def since(self, before: "StreamState | None", job: Followed, was: Followed | None = None) -> bytes:
        """The status event for a listener that saw `before` and `was`: the tables only where they changed."""
        changed = [
            b'"' + name.encode() + b'":' + part
            for name, part in self.parts.items()
            if before is None or before.parts.get(name) != part
        ]
        return event("status", b",".join([self.core[:-1], b'"job":' + job.since(was), *changed]) + b"}")


class Streams:
    """All open event streams of one server."""

    def __init__(self, facade: Facade, period_s: float = PERIOD_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._facade = facade
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._state: StreamState | None = None
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self.listeners = 0

    def close(self) -> None:
        """Ends all streams at once: a server that stops must not wait for its listeners."""
        self._closing.set()
        self._changed.set()

    async def status(self, since: int = -1, since_job: str = "", follow: str = "") -> AsyncGenerator[bytes]:
        """Status on every change, and the steps of the job that is followed; empty: of the newest, whichever that is.

        Steps up to `since` of `since_job` are known already (empty: of the job that is followed); of another job all
        are sent. The newest step is sent once more with the next one, or with the job's end: when it was sent first,
        not all ranks had reported it, perhaps not the one that knows the loss.
        """
        self._join()
        try:
            seen: StreamState | None = None
            was: Followed | None = None
            sent = False
            while not self._closing.is_set():
                state, changed = self._state, self._changed
                if state is not None and state is not seen:
                    job = state.job(follow)
                    if since_job and job.id != since_job:
                        since, sent = -1, False
                    since = min(since, job.step)  # the job went back to a snapshot: its steps are done again
                    text = state.since(seen, job, was)
                    yield text
                    due = time.monotonic() + min(LONGEST_S, len(text) / RATE)
                    ended = job.over and was is not None and not was.over
                    if job.id and (job.step > since or (sent and ended)):
                        rows = self._steps(job.id, since - sent)
                        yield event("steps", encode({"job": job.id, **rows}))
                        since, sent = max([since, *rows["step"][-1:]]), True
                    seen, was, since_job = state, job, job.id
                    await self._pause(due - time.monotonic())
                try:
                    await asyncio.wait_for(changed.wait(), self._heartbeat_s)
                except TimeoutError:
                    yield HEARTBEAT
        finally:
            self._leave()

    async def _pause(self, seconds: float) -> None:
        """Ends early when the streams close."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), seconds)

    def _steps(self, job: str, since: int) -> Json:
        try:
            return self._facade.steps(since=since, id=job)
        except KeyError:  # the controller has let go of it since the state was read
            return {"step": []}

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
                    found = line.result()
                    name = "unfinished" if found.get("unfinished") else "line"
                    yield event(name, encode(found))
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
                self._state = StreamState(self._facade)
                # Each wave of waiters has an event of its own: none can miss a change or see one twice.
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(self._period_s)
