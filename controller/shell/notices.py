"""What notifications are made from, and where they report to: the shell's side of `controller.alerts`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.base import log
from holdfast.controller.alerts.book import Book, JobView
from holdfast.controller.detectors.agents.notification import notification_finding
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.state.events import Found

if TYPE_CHECKING:
    from holdfast.controller.shell.report import Report


class JobViews:
    """The jobs in memory with their health. That of a job that has ended does not change: it is judged once."""

    def __init__(self, shell: Shell, report: Report) -> None:
        self._shell, self._report = shell, report
        self._ended: dict[str, JobView] = {}

    def now(self) -> list[JobView]:
        brains = self._shell.brain.jobs.brains
        self._ended = {id: view for id, view in self._ended.items() if id in brains}
        views = []
        for id, brain in brains.items():
            view = self._ended.get(id)
            doc = self._report.job(id) if view is None else None
            if doc is not None:
                view = JobView(id, str(doc["name"]), float(doc["submitted_at"]), doc["health"])
                if brain.c.job.state.ended:
                    self._ended[id] = view
            if view is not None:
                views.append(view)
        return views


def restored(documents: Iterable[tuple[str, str, dict[str, Any]]], digest: float) -> Book:
    """The book as an earlier run of the controller left it in the journal."""
    book = Book(digest=digest)
    for line in book.restore(documents):
        log.error("notice.unreadable", error=line)
    return book


def reporter(shell: Shell) -> Callable[[str, str], None]:
    """Makes a finding of a receiver's name and its error."""

    def report(receiver: str, error: str) -> None:
        shell.handle(Found(notification_finding(receiver, error, now())))

    return report
