"""How a worker ended, beyond its exit code: what killed it, its traceback, its last lines and steps."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.collectors.kernel_log import KernelLog, OomWatch
from holdfast.agent.forkserver import error_file
from holdfast.agent.forkserver.worker_spec import Key
from holdfast.agent.logs.progress_watch import ProgressWatch
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.agent.probe_file import injections
from holdfast.agent.processes.guard import PartGuard
from holdfast.agent.workers.probes import WorkerProbes
from holdfast.base import private
from holdfast.facts import tracebacks
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_TAIL = 16 * 1024


class ExitReports:
    """Reads what workers leave behind. An exit is always reported: a failing source does not affect the others."""

    def __init__(
        self,
        run_dir: Path,
        logs: WorkerLogs,
        kernel: KernelLog,
        probes: WorkerProbes,
        progress: ProgressWatch,
        on_log: Callable[[msg.LogChunk], None],
        guard: PartGuard,
    ) -> None:
        self._folder = run_dir / "errors"
        self._logs, self._kernel, self._probes, self._progress = logs, kernel, probes, progress
        self._on_log, self._guard = on_log, guard
        self._oom = OomWatch()

    def make_folder(self) -> None:
        """For the workers' error files. Raises OSError; without the folder a worker's log has its error."""
        private.make_folder(self._folder)

    def error_file(self, key: Key) -> Path:
        return self._folder / f"{key[0]}-g{key[1]}-rank{key[2]}.json"

    def remember(self, pid: int) -> None:
        """A worker runs: its cgroup may be gone when it ends."""
        self._oom.remember(pid)

    def complete(self, exited: t.WorkerExited) -> t.WorkerExited:
        """The exit with its cause, error and tail. Reads the worker's output to its end, and closes its probe."""
        key = (exited.job, exited.generation, exited.rank)
        phase, tail, error = None, "", ""
        with self._guard("last words"):
            phase = self._probes.last_words(key)
        with self._guard("last lines"):
            mark = self._logs.mark(*key)  # the same object goes on while the rest is read
            for chunk in self._logs.drain(*key):
                self._on_log(chunk)
            self._progress.end(key, self._probes.path(key), mark)
        unknown = exited.code == -1 and not exited.signal  # its parent, the fork server, had died before it
        code = 0 if unknown and phase is t.Phase.DONE else exited.code
        killed = exited.signal == signal.SIGKILL and self._oom_killed(exited.pid)
        with self._guard("traceback"):
            tail = self._logs.tail(*key, "err", _TAIL)
            error = "" if code == 0 else self._error(key, tail)
        oom = killed or exited.oom_killed
        return dataclasses.replace(exited, code=code, oom_killed=oom, error=error, tail=tail[-4000:])

    def forget(self, key: Key) -> None:
        """The controller has the report."""
        self.error_file(key).unlink(missing_ok=True)

    def _oom_killed(self, pid: int) -> bool:
        self._kernel.read()
        # Each source also cleans up after itself, so all are asked.
        verdicts = [injections.finish_oom(pid), self._oom.verdict(pid), pid in self._kernel.oom_killed_pids]
        return any(verdicts)

    def _error(self, key: Key, tail: str) -> str:
        """Its traceback: from its own report, else, when it had no time to write one, from its log."""
        return error_file.read(str(self.error_file(key)))[-_TAIL:] or tracebacks.last_traceback(tail)
