"""The last hour of each job, as columns, and the moments of its days, which the journal keeps."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.base import log
from holdfast.base.errors import Conflict
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.journal import moments
from holdfast.controller.past.day import DAY_S, day, then
from holdfast.controller.past.moment import is_worth_keeping, moment
from holdfast.controller.shell.job_report import Json
from holdfast.controller.shell.shell import Shell
from holdfast.controller.state.goodput import HOUR, Account
from holdfast.wire import types as t

_LOOK = 5.0
_EVERY = 15.0  # of the last hour
_KEPT = 240


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    mfu: float | None
    goodput: float | None
    """Of the 24 hours before."""
    at_risk: float | None
    """Seconds of work that the death of a worker would cost; where that is not known, of the whole job."""
    spares: int


class Days:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hours: dict[str, deque[Sample]] = {}
        self._kept: dict[str, tuple[float, Json]] = {}
        self._over: set[str] = set()  # jobs whose last moment is kept
        self.view: Callable[[str], Json | None] = lambda _: None
        """`models.Job` with its health, by id."""

    def restore(self, wall: float) -> None:
        """What was before the controller's start, from the journal: of jobs that go on."""
        for id, brain in self._shell.brain.jobs.brains.items():
            if brain.c.job.state.ended:
                self._over.add(id)
                continue
            try:
                known = moments.between(self._shell.journal.path, id, wall - DAY_S, wall)
            except sqlite3.Error as error:
                log.warning("moments.unreadable", job=id, error=str(error))
                continue
            brain.c.time.recall([(at, doc["useful_s"], doc["queued_s"]) for at, doc in known])
            self._hours[id] = deque((_of_moment(at, doc) for at, doc in known if at >= wall - HOUR), maxlen=_KEPT)

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample(time.time())
            await asyncio.sleep(_LOOK)

    def sample(self, wall: float) -> None:
        nodes = self._shell.brain.c.nodes.values()
        spares = sum(node.state is t.NodeState.SPARE for node in nodes)
        usual = (t.NodeState.HEALTHY, t.NodeState.SPARE)
        doubtful = {node.name: node.state.value for node in nodes if node.state not in usual}
        brains = self._shell.brain.jobs.brains
        for kept in (self._hours, self._kept):
            for id in kept.keys() - brains.keys():
                del kept[id]
        self._over &= brains.keys()
        found = []
        for id, brain in brains.items():
            if id in self._over or (view := self.view(id)) is None:
                continue
            now = moment(view, _useful(brain), _stored(brain), spares, doubtful)
            if brain.c.job.state.ended:
                self._over.add(id)
            elif not (hour := self._hours.setdefault(id, deque(maxlen=_KEPT))) or wall - hour[-1].at >= _EVERY:
                hour.append(_of_moment(wall, now))
            if is_worth_keeping(self._kept.get(id), wall, now):
                self._kept[id] = (wall, now)
                found.append((id, now))
        self._shell.keep_moments(found, wall)

    def hour(self, job: str, since: float) -> Json:
        rows = [one for one in self._hours.get(job, ()) if one.at > since]
        return {
            "job": job,
            "at": [one.at for one in rows],
            "mfu": [one.mfu for one in rows],
            "goodput": [one.goodput for one in rows],
            "at_risk": [one.at_risk for one in rows],
            "spares": [one.spares for one in rows],
        }

    def day(self, job: str, until: float) -> Callable[[], Json]:
        """`days.Day` of the day before `until`; what is returned reads it, in any thread."""
        path, incidents = self._shell.journal.path, list(self._shell.brain.c.book.incidents.values())
        since = until - DAY_S

        def read() -> Json:
            with _readable():
                found = moments.between(path, job, since, until)
            return day(job, found, incidents, since, until)

        return read

    def then(self, job: str, at: float) -> Callable[[], Json]:
        """`days.Then`; what is returned reads it, in any thread. Conflict where nothing is kept of that time."""
        path, incidents = self._shell.journal.path, list(self._shell.brain.c.book.incidents.values())

        def read() -> Json:
            with _readable():
                found = moments.newest(path, job, at)
            if found is None:
                raise Conflict(
                    f"nothing is kept of job {job} at that time: it was submitted later, or it is too long ago"
                )
            return then(job, found, incidents, at)

        return read


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Conflict(f"the controller's journal cannot be read: {error}") from None


def _of_moment(at: float, doc: Json) -> Sample:
    return Sample(at, doc["mfu"], doc["goodput"], doc["at_risk"], doc["spares"])


def _useful(brain: JobBrain) -> float:
    booked = brain.c.time.booked
    return booked[Account.PRODUCTIVE] + booked[Account.TRAINING]


def _stored(brain: JobBrain) -> int | None:
    time_ = brain.c.time
    return time_.safe if time_.reports and time_.safe >= 0 else None
