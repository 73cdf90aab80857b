"""The probe files of this node's workers: a reader for each, what jobs announce beside them, and their last words."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.agent.forkserver.worker_spec import Key
from holdfast.agent.probe_file.layout import STACKS_SUFFIX
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.workers.announcements import Announcements
from holdfast.base import log
from holdfast.base.errors import HoldfastError, ProtocolError, Unavailable
from holdfast.wire import types as t


class WorkerProbes:
    """The caller keeps track of which workers run."""

    def __init__(
        self,
        folder: Path,
        on_event: Callable[[t.Event], None],
        on_last_steps: Callable[[tuple[t.StepRecord, ...]], None],
        on_last_reader: Callable[[ProbeReader], None],
    ) -> None:
        """`on_last_steps` and `on_last_reader` get what a worker that ended left unread."""
        self._folder = folder
        self._on_last_steps, self._on_last_reader = on_last_steps, on_last_reader
        self._readers: dict[Key, ProbeReader] = {}
        self._announcements = Announcements(on_event)

    def path(self, key: Key) -> Path:
        return self._folder / f"{key[0]}-g{key[1]}-rank{key[2]}"

    def readers(self, running: Iterable[Key]) -> list[ProbeReader]:
        """A reader for each of these workers that has its probe up."""
        found = []
        for key in running:
            if key not in self._readers:
                try:
                    self._readers[key] = self._open(key)
                except Unavailable:
                    continue
                except HoldfastError as error:
                    log.debug("probe.unreadable", rank=key[2], error=str(error))
                    continue
            found.append(self._readers[key])
        return found

    def _open(self, key: Key) -> ProbeReader:
        """Unavailable when the worker has no probe yet, ProtocolError when what is there is not this worker's."""
        reader = ProbeReader(str(self.path(key)), key[0])
        if (reader.generation, reader.rank) != key[1:]:
            reader.close()
            raise ProtocolError(f"{reader.path} says rank {reader.rank} of generation {reader.generation}")
        return reader

    def look_for_announcements(self, running: Iterable[Key]) -> None:
        """Pass on what the jobs of these workers report of themselves."""
        for key in running:
            if self._announcements.expects(key):
                self._announcements.look(key, self.path(key))

    def last_words(self, key: Key) -> t.Phase | None:
        """Take what the worker's probe still holds; the phase that it ended in, if it reported one.

        The file stays until the exit is durable: if the agent dies before that, its successor reads it again.
        """
        path = self.path(key)
        reader = self._readers.pop(key, None)
        steps: tuple[t.StepRecord, ...] = ()
        phase = None
        try:
            # A worker that ran between two heartbeats was never read.
            reader = reader or self._open(key)
            steps = tuple(reader.new_steps())
            phase = reader.sample(time.monotonic_ns()).phase
            self._on_last_reader(reader)
            reader.close()
        except HoldfastError as error:
            log.debug("probe.unreadable", rank=key[2], error=str(error))
        path.with_name(path.name + STACKS_SUFFIX).unlink(missing_ok=True)
        self._announcements.end(key, path)
        if steps:
            self._on_last_steps(steps)
        return phase

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
