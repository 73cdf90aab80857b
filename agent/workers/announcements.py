"""Reads what a job's rank 0 leaves beside its probe (plan, source of its state, time of its imports), each once."""

import json
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.forkserver.worker_spec import Key
from holdfast.agent.probe_file.layout import IMPORTS_SUFFIX, PLAN_SUFFIX, RESTORED_SUFFIX
from holdfast.base import bounds, files, log
from holdfast.wire import types as t

_MAX_BYTES = {PLAN_SUFFIX: 32 << 20, RESTORED_SUFFIX: 4 << 10, IMPORTS_SUFFIX: 4 << 10}


def _plan(job: str, generation: int, data: bytes) -> t.Event:
    return t.PlanPublished(job, generation, data)


def _restored(job: str, generation: int, data: bytes) -> t.Event:
    said = json.loads(data)
    return t.StateRestored(
        job,
        generation,
        step=bounds.whole(int(said["step"]), 0, bounds.MAX_STEP),
        source=bounds.text(str(said["source"]), 16),
        seconds=bounds.amount(float(said["seconds"])),
        num_bytes=bounds.whole(int(said["bytes"]), 0, bounds.MAX_COUNT),
        sent_bytes=bounds.whole(int(said.get("sent", 0)), 0, bounds.MAX_COUNT),
    )


def _imports(job: str, generation: int, data: bytes) -> t.Event:
    said = json.loads(data)
    seconds = bounds.amount(float(said["seconds"]))
    return t.ImportsTimed(job, generation, seconds, bounds.text(str(said["frameworks"]), 200))


_KINDS: dict[str, Callable[[str, int, bytes], t.Event]] = {
    PLAN_SUFFIX: _plan,
    RESTORED_SUFFIX: _restored,
    IMPORTS_SUFFIX: _imports,
}


class Announcements:
    """`on_event` gets each of them. After a restart of the agent they are reported again, which is harmless."""

    def __init__(self, on_event: Callable[[t.Event], None]) -> None:
        self._on_event = on_event
        self._reported: set[tuple[Key, str]] = set()

    def expects(self, key: Key) -> bool:
        """Whether this worker may leave something yet. Only rank 0 leaves anything."""
        return key[2] == 0 and any((key, suffix) not in self._reported for suffix in _KINDS)

    def look(self, key: Key, probe: Path) -> None:
        """Report what this worker left and was not reported yet."""
        for suffix in _KINDS if key[2] == 0 else ():
            if (key, suffix) not in self._reported:
                self._look(key, suffix, probe.with_name(probe.name + suffix))

    def end(self, key: Key, probe: Path) -> None:
        """The worker is gone: report what was not reported yet, and remove the files."""
        self.look(key, probe)
        for suffix in _KINDS if key[2] == 0 else ():
            self._reported.discard((key, suffix))
            probe.with_name(probe.name + suffix).unlink(missing_ok=True)

    def _look(self, key: Key, suffix: str, path: Path) -> None:
        job, generation, _ = key
        try:
            size = path.lstat().st_size
            data = files.head(path, _MAX_BYTES[suffix] + 1)
        except FileNotFoundError:
            return  # not yet, or never: a script of the user's own has no plan
        except OSError:
            data = b""  # nothing that can be read
        self._reported.add((key, suffix))
        what = suffix.lstrip(".")
        if not data or len(data) > _MAX_BYTES[suffix]:
            log.warning(f"{what}.refused", job=job, generation=generation, bytes=size, limit=_MAX_BYTES[suffix])
            return
        try:
            event = _KINDS[suffix](job, generation, data)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            log.warning(f"{what}.refused", job=job, generation=generation, error=f"{type(error).__name__}: {error}")
            return
        log.event(f"{what}.found", job=job, generation=generation, bytes=size)
        self._on_event(event)
