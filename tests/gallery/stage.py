"""A situation on stage: a real brain in virtual time, and everything that reports of it, as one controller has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.simulated_spans import Culprit, simulate
from benchmarks.simulated_spans import Job as SimulatedJob
from holdfast.cli.local.ports import free_port
from holdfast.controller.alerts.book import Book
from holdfast.controller.alerts.formats import Message, message_of
from holdfast.controller.alerts.notice import Stage
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from holdfast.controller.shell.blame_watch import BlameWatch, _look
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.notices import JobViews
from holdfast.controller.shell.report import Report
from holdfast.controller.state.events import EventSeen
from holdfast.diagnostics.steps import span_table
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual

ADDRESS = "http://controller:7070"


@dataclass
class Scene:
    """`v` moves it; `run` lets time go by with everybody looking on."""

    folder: Path
    v: Virtual
    book: Book = field(default_factory=lambda: Book(digest=0.0))

    def __post_init__(self) -> None:
        self.shell = make_shell(self.folder, self.v.brain, clock=lambda: self.v.instant)
        self.watch = BlameWatch(self.shell, Tuning(["straggler.windows=1"]), lambda: self.v.instant)
        self.days = Days(self.shell)
        self.report = Report(self.shell, -1, self.watch, self.days, clock=lambda: self.v.instant)
        self.views = JobViews(self.shell, self.report)
        self.look()

    def look(self) -> None:
        wall = self.v.instant.wall
        self.days.sample(wall)
        self.book.look(list(self.v.brain.c.book.incidents.values()), self.views.now(), wall)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.v.run(1.0)
            self.look()

    def slow(self, culprit: Culprit) -> None:
        """Spans of 64 steps, of which this rank is slow in the last 48, and the controller's two looks at them."""
        job = self.v.job
        well, plan = simulate(SimulatedJob(), [], 64, 1)
        slow, _ = simulate(SimulatedJob(), [culprit], 64, 1)
        self.v.feed(EventSeen("node0", t.PlanPublished(job.spec.id, job.generation, encode_plan(plan))))
        self.shell.listen(job.spec.id)
        for table in (well.of_steps(0, 15), slow.of_steps(16, 63)):
            for spans in span_table.encode(table, job.spec.id, job.generation):
                self.shell.spans.add("node0", msg.Spans((spans,), 0, 1000))
            due = self.watch.due(self.v.brain.jobs.newest)
            assert due is not None
            seen = _look(due)
            assert seen.blame is not None
            self.watch.take(seen.blame, due.shape, due.generation, seen.beginning)
        self.look()

    @property
    def firing(self) -> list[Message]:
        """What receivers have of all matters that are not over."""
        open_ones = [one for one in self.book.notices.values() if one.stage != Stage.RESOLVED]
        return [message_of(one, ADDRESS) for one in open_ones]

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address of the controller, which is nobody's afterwards. Virtual time stands still meanwhile."""
        ready, box = threading.Event(), {}

        async def serve() -> None:
            box["loop"], box["stop"] = asyncio.get_running_loop(), asyncio.Event()
            async with serving(create_app(self.report, Auth()), port=free_port()) as box["port"]:
                ready.set()
                await box["stop"].wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert ready.wait(120)
        try:
            yield f"http://127.0.0.1:{box['port']}"
        finally:
            box["loop"].call_soon_threadsafe(box["stop"].set)
            thread.join()
