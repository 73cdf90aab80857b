"""The thin shell around the brain: events in, records made durable, commands sent. One event loop, no threads."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.base import log
from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.detectors.agents.input import journal_finding
from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.recording import REFUSED, Recorder, did
from holdfast.controller.shell.environments import FOLDER, Environments
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.shell.sessions import Sessions
from holdfast.controller.spans.samples import Samples
from holdfast.controller.spans.store import SpanStore
from holdfast.controller.spans.window import SpanWindows
from holdfast.controller.state.events import Action, BrainEvent, Found, FrameSeen, JobSubmitted, Record, Say, Send, Tick
from holdfast.controller.state.model import Instant
from holdfast.wire import messages as msg

_TICK = 0.05
_FLUSH = 0.2


def now() -> Instant:
    return Instant(time.monotonic(), time.time())


class Shell:
    def __init__(
        self,
        brain: ClusterBrain,
        journal: Journal,
        samples: Samples,
        logs: LogHub,
        *,
        spans: SpanWindows | None = None,
        span_store: SpanStore | None = None,
        sessions: Sessions | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], Instant] | None = None,
    ) -> None:
        """`span_store`: where spans are kept on disk; `recorder`: writes down each event with its decisions."""
        self.clock = clock or now
        self.brain, self.journal, self.samples, self.logs = brain, journal, samples, logs
        self.spans = spans or SpanWindows(64 << 20)
        self.span_store = span_store
        self.sessions = sessions or Sessions()
        self.environments = Environments(journal.path.parent / FOLDER)
        self.recorder = recorder
        self._listening: set[str] = set()  # jobs whose logs and spans are accepted
        self.started_at = time.time()
        self.lag = 0.0
        self.worst_lag = 0.0
        self.journal_seconds = 0.0
        self.bugs = 0
        self.journal_failing = self._reporting = False

    def handle(self, event: BrainEvent) -> None:
        """Decide and act. UsageError when the event was a wish that cannot be."""
        if isinstance(event, FrameSeen):
            self.samples.add(event.node, event.frame)
        at = self.clock()
        try:
            actions = self.brain.handle(event, at)
        except HoldfastError:
            self._note(event, at, [REFUSED])
            raise
        except Exception as error:
            # A bug in the handling of one event must not end the controller, again at each start.
            self.note_bug("brain.bug", happened=type(event).__name__, error=repr(error))
            return
        self._note(event, at, did(actions) if self.recorder is not None else [])
        if isinstance(event, JobSubmitted):
            self.listen(event.spec.id)
        if actions:
            self._perform(actions)

    def note_bug(self, name: str, **fields: str) -> None:
        """Count and log the exception that is being handled: a bug in Holdfast."""
        self.bugs += 1
        log.exception(name, **fields)

    def listen(self, job: str) -> None:
        """Take the job's logs and spans from now on, until it is over."""
        self._listening.add(job)
        self.logs.begin(job)
        self.spans.begin(job)

    def _note(self, event: BrainEvent, at: Instant, lines: list[str]) -> None:
        """Record it, if that is wanted. A disk that is full ends the recording, and nothing else."""
        if self.recorder is None:
            return
        try:
            self.recorder.add(event, at, lines)
        except OSError as error:
            log.error("recording.ended", error=str(error))
            self.recorder = None

    def _perform(self, actions: Iterable[Action]) -> None:
        actions = list(actions)
        self._write([a for a in actions if isinstance(a, Record)])
        for action in actions:
            if isinstance(action, Send):
                self.sessions.send(action.node, self.environments.filled(action.command))
            elif isinstance(action, Say):
                log.event(action.name, **action.fields)
        for job in [one for one in self._listening if self.brain.c.jobs[one].state.ended]:
            self._listening.discard(job)
            self.environments.forget(job)
            self.logs.end(job)
            self.spans.end(job)

    def keep(self, records: list[Record]) -> None:
        """Write to the journal what is not the brain's."""
        self._write(records)

    def keep_moments(self, moments: list[tuple[str, dict[str, Any]]], wall: float) -> None:
        """Write what jobs are at this time, which somebody may want to see later."""
        if moments:
            self._journal(lambda: self.journal.write_moments(moments, wall))

    def _write(self, records: list[Record]) -> None:
        if records:
            self._journal(lambda: self.journal.write(records, time.time()))

    def _journal(self, write: Callable[[], list[str]]) -> None:
        start = time.perf_counter()
        left_out: list[str] = []
        try:
            left_out = write()
            self.journal_failing = False
        except sqlite3.Error as error:
            # Acting without a record is better than standing still: agents report the actual state after a restart.
            if not self.journal_failing:
                log.error("journal.failed", error=str(error))
            self.journal_failing = True
        self.journal_seconds += time.perf_counter() - start
        self._report_left_out(left_out)

    def flush_steps(self) -> None:
        self._flush_recording()
        for job, brain in self.brain.jobs.brains.items():
            rows, superseded = brain.c.ledger.take_dirty(), brain.c.ledger.take_superseded()
            if not rows and not superseded:
                continue
            start = time.perf_counter()
            try:
                self._report_left_out(self.journal.write_steps(job, rows, superseded))
                self.journal_failing = False
            except sqlite3.Error as error:
                self.journal_failing = True
                brain.c.ledger.not_written(rows, superseded)
                log.error("journal.failed", error=str(error))
                return
            self.journal_seconds += time.perf_counter() - start
        self.sessions.acknowledge(self.brain.c.heartbeat_interval)

    def _flush_recording(self) -> None:
        try:
            if self.recorder is not None:
                self.recorder.flush()
        except OSError as error:
            log.error("recording.ended", error=str(error))
            self.recorder = None

    def _report_left_out(self, rows: list[str]) -> None:
        """What the journal cannot hold is no reason to stop: it is left out, and reported."""
        if not rows or self._reporting:
            return
        log.error("journal.left-out", rows=len(rows), first=rows[0])
        self._reporting = True  # so that the report of it, which is journaled too, is not reported again
        try:
            self.handle(Found(journal_finding(f"{len(rows)} row(s) were not written", rows, self.clock())))
        finally:
            self._reporting = False

    async def run(self) -> None:
        """Ticks and flushes until cancelled."""
        due, used = time.monotonic(), time.process_time()
        flush = due
        while True:
            due = max(due + _TICK, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.lag = max(0.0, time.monotonic() - due)
            self.worst_lag = max(self.lag, self.worst_lag * 0.99)
            before, used = used, time.process_time()
            self.handle(Tick(self.lag, used - before))
            if time.monotonic() - flush >= _FLUSH:
                flush = time.monotonic()
                self.flush_steps()

    def send(self, node: str, message: msg.ControllerMessage) -> None:
        """Unavailable when the node has no stream."""
        if not self.sessions.send(node, message):
            raise Unavailable(f"{node} is not connected")
