"""The last hour of each job, as columns: what the page draws beside its figures and what no step carries."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from holdfast.controller.shell.job_report import Json, job_doc
from holdfast.controller.shell.shell import Shell
from holdfast.wire import types as t

_EVERY = 15.0
_KEPT = 240  # an hour


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    mfu: float | None
    goodput: float | None
    """Of the 24 hours before."""
    at_risk: float | None
    """Seconds of work that the death of a worker would cost; where that is not known, of the whole job."""
    spares: int


class Hours:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._jobs: dict[str, deque[Sample]] = {}

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample(time.time())
            await asyncio.sleep(_EVERY)

    def sample(self, wall: float) -> None:
        cluster = self._shell.brain.c
        spares = sum(node.state is t.NodeState.SPARE for node in cluster.nodes.values())
        brains = self._shell.brain.jobs.brains
        self._jobs = {id: samples for id, samples in self._jobs.items() if id in brains}
        for id, brain in brains.items():
            if not brain.c.job.state.ended:
                self._jobs.setdefault(id, deque(maxlen=_KEPT)).append(_sample(job_doc(brain), spares, wall))

    def columns(self, job: str, since: float) -> Json:
        rows = [one for one in self._jobs.get(job, ()) if one.at > since]
        return {
            "job": job,
            "at": [one.at for one in rows],
            "mfu": [one.mfu for one in rows],
            "goodput": [one.goodput for one in rows],
            "at_risk": [one.at_risk for one in rows],
            "spares": [one.spares for one in rows],
        }


def _sample(doc: Json, spares: int, wall: float) -> Sample:
    risk = doc["at_risk"] or {}
    worker, job = risk.get("worker"), risk.get("job")
    return Sample(wall, doc["mfu"], doc["time"]["last_day"], job if worker is None else worker, spares)
