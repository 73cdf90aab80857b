"""How far programs are that number no steps: what the hooks saw them save, and the steps that they print. And since
which step a worker's own gradients are not finite."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.forkserver.worker_spec import Key
from holdfast.agent.hooks import gradients
from holdfast.agent.probe_file.layout import SAVED_SUFFIX
from holdfast.base import bounds, files
from holdfast.wire import types as t

APART_S = 10.0
"""Seconds between two reports of one source by a node, so that a big job with many writers stays quiet."""
_LOOKED_AT = 4096  # characters at the end of what is new
_MOST_SAVED = 4096  # bytes of what a worker says that it saved
_STEP = re.compile(r"\b(?:global[ _])?(?:step|iter(?:ation)?)s?\b[^\w\n]{0,3}(\d{1,18})", re.IGNORECASE)


@dataclass(slots=True)
class Mark:
    """The greatest number of a step that a worker printed."""

    number: int = -1
    count: int = 0
    """How often it printed a greater one than before."""
    line: str = ""

    def read(self, text: str) -> None:
        """Take the last number of a step in these lines."""
        tail = text[-_LOOKED_AT:]
        matches = list(_STEP.finditer(tail))
        if not matches or int(matches[-1][1]) <= self.number:
            return
        found = matches[-1]
        start, end = tail.rfind("\n", 0, found.start()) + 1, tail.find("\n", found.end())
        self.number, self.count = int(found[1]), self.count + 1
        self.line = tail[start : end if end >= 0 else None][:200]


class ProgressWatch:
    """`on_event` gets what is new, not too often; and the last word of each worker, whenever it was."""

    def __init__(self, on_event: Callable[[t.Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_event, self._clock = on_event, clock
        self._saved: dict[Key, int] = {}  # mtime of what was reported last, in ns
        self._marks: dict[Key, int] = {}
        self._gradients: dict[Key, int] = {}  # as `_saved`
        self._reported_at: dict[str, float] = {}

    def look(self, key: Key, probe: Path, mark: Mark | None, is_end: bool = False) -> None:
        """`mark`: of the worker's output, if it is followed."""
        self._look_at_saves(key, probe.with_name(probe.name + SAVED_SUFFIX), is_end)
        self._look_at_gradients(key, probe.with_name(probe.name + gradients.SUFFIX))
        if mark is not None and mark.count > self._marks.get(key, 0) and self._may("log", is_end):
            self._marks[key] = mark.count
            self._report(key, "log", mark.number, mark.count, mark.line)

    def end(self, key: Key, probe: Path, mark: Mark | None) -> None:
        """The worker is gone."""
        self.look(key, probe, mark, is_end=True)
        self._saved.pop(key, None)
        self._marks.pop(key, None)
        self._gradients.pop(key, None)
        for suffix in (SAVED_SUFFIX, gradients.SUFFIX):
            probe.with_name(probe.name + suffix).unlink(missing_ok=True)

    def _look_at_saves(self, key: Key, path: Path, is_end: bool) -> None:
        try:
            changed = path.lstat().st_mtime_ns
            if changed == self._saved.get(key) or not self._may("checkpoint", is_end):
                return
            self._saved[key] = changed
            said = json.loads(files.head(path, _MOST_SAVED))
            number, count = (max(-1, min(int(said[name]), 2**62)) for name in ("number", "count"))
            self._report(key, "checkpoint", number, max(count, 0), str(said["path"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # nothing was saved, or in a format that is not ours

    def _look_at_gradients(self, key: Key, path: Path) -> None:
        """At once: what the controller decides waits for no report of it, but is explained by it."""
        try:
            changed = path.lstat().st_mtime_ns
            if changed == self._gradients.get(key):
                return
            self._gradients[key] = changed
            said = json.loads(files.head(path, _MOST_SAVED))
            since, steps = (max(-1, min(int(said[name]), bounds.MAX_STEP)) for name in ("since", "steps"))
            self._report(key, t.GRADIENTS, since, max(steps, 0), "")
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # as above

    def _may(self, source: str, is_end: bool) -> bool:
        now = self._clock()
        if is_end or now - self._reported_at.get(source, now - APART_S) >= APART_S:
            self._reported_at[source] = now
            return True
        return False

    def _report(self, key: Key, source: str, number: int, count: int, text: str) -> None:
        self._on_event(t.ProgressSeen(*key, time.time_ns(), source, number, count, bounds.text(text, 500)))
