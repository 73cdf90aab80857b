"""Picks up the plan that a job's rank 0 leaves beside its probe, and tells of it once."""

from collections.abc import Callable
from pathlib import Path

from holdfast import log
from holdfast import types as t
from holdfast.agent.probe_layout import PLAN_SUFFIX
from holdfast.agent.worker_spec import Key

_MAX_BYTES = 32 << 20


class Plans:
    """`on_event` gets each plan. After a restart of the agent plans are told again, which is harmless."""

    def __init__(self, on_event: Callable[[t.Event], None]) -> None:
        self._on_event = on_event
        self._told: set[Key] = set()

    def look(self, key: Key, probe: Path) -> None:
        """Tell of this worker's plan if it has one that was not told yet. Only rank 0 has one."""
        job, generation, rank = key
        if rank or key in self._told:
            return
        path = probe.with_name(probe.name + PLAN_SUFFIX)
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= _MAX_BYTES else b""
        except OSError:
            return  # not yet, or never: a script of the user's own has no plan
        self._told.add(key)
        if not data:
            log.warning("plan.refused", job=job, generation=generation, bytes=size, limit=_MAX_BYTES)
            return
        log.event("plan.found", job=job, generation=generation, bytes=size)
        self._on_event(t.PlanPublished(job, generation, data))

    def end(self, key: Key, probe: Path) -> None:
        """The worker is gone: tell what was not told yet, and remove the file."""
        self.look(key, probe)
        self._told.discard(key)
        if key[2] == 0:
            probe.with_name(probe.name + PLAN_SUFFIX).unlink(missing_ok=True)
