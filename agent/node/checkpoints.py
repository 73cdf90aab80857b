"""The checkpoint daemon of this node: start it with the first worker, or find the one of an agent before us; start it
again when it dies; turn what it reports (status.json of each job) into gauges and notices.

The daemon holds what must survive this agent, so it is a process of its own and ends only when workers end with us.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.agent.processes import interpreter
from holdfast.base import files, log, private
from holdfast.base.errors import UsageError
from holdfast.base.local_socket import short_path
from holdfast.base.retry import Backoff
from holdfast.wire import types as t

FOLDER_VARIABLE = "HOLDFAST_SNAPSHOTS"
"""Names the daemon's address and the snapshots' folder to workers; as in checkpoint/snapshots/files.py."""

STORE = "checkpoint-store"
"""Kind of the notices of a store that fails, and of its return."""

_TAKEN = 3
"""The daemon's exit code when the folder has one."""
_SOCKET, _STATUS, _ABSENT = "daemon.sock", "status.json", "daemon.absent"
_LOG, _PID = "checkpoint.log", "checkpoint.pid"
_RESTART = Backoff(initial=0.5, cap=3.0)  # workers that start wait 30 s for it, and go on from what it kept
_STEADY_S = 60.0
_MOST_STATUS = 4 << 20  # bytes of the status of a job, in a folder in which its workers may write
_END_S = 3.0

Json = dict[str, Any]


def snapshots_dir(state_dir: Path, node: str) -> Path:
    """Where this node's snapshots are: in memory, and the same after a restart of the agent."""
    digest = hashlib.sha256(str(state_dir.absolute()).encode()).hexdigest()[:8]
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else state_dir
    return base / f"holdfast-{os.getuid()}-{node}-{digest}"


class Checkpoints:
    """Everything returns at once but `close`. Used in the agent's loop."""

    def __init__(
        self,
        state_dir: Path,
        node: str,
        switch: str,
        own_address: Callable[[], str],
        report: Callable[[t.Event], None],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own_address`: where other nodes' daemons reach this one's. `report` gets notices."""
        self.folder = snapshots_dir(state_dir, node)
        self._log, self._pid_file = state_dir / "run" / _LOG, state_dir / "run" / _PID
        self._node, self._switch, self._own_address, self._report = node, switch, own_address, report
        self._environ, self._clock = environ, clock
        self._is_wanted = False
        self._sock: socket.socket | None = None
        self._pid = 0
        self._has_answered = False
        self._started = -_STEADY_S
        self._delays: Iterator[float] = _RESTART.delays()
        self._not_before = 0.0
        self._jobs: dict[Path, tuple[int, Json]] = {}
        self._failing: dict[str, str] = {}
        self._repairs: dict[str, int] = {}

    def environment(self) -> dict[str, str]:
        """For workers."""
        return {FOLDER_VARIABLE: str(self.folder)}

    def adopt(self) -> bool:
        """Take over the daemon that an agent before us has left, if there was one. Should it have died meanwhile, then
        what it kept is still there, and workers that still run need another."""
        is_alive = self._connect() or bool(self.daemon_pid())
        if is_alive or self.folder.is_dir():
            self._is_wanted = True
            log.event("checkpoint.adopted", folder=str(self.folder), is_alive=is_alive)
        return self._is_wanted

    def ensure(self) -> None:
        """Workers are about to start: they want a daemon."""
        self._is_wanted = True
        self._keep()

    def look(self) -> dict[str, float]:
        """Once a second: check that the daemon runs, report what changed, and return the gauges."""
        if not self._is_wanted:
            return {}
        self._keep()
        documents = self._read()
        for event in self._changes(documents):
            self._report(event)
        return gauges(documents, time.time())

    def close(self, end: bool) -> None:
        """Leave the daemon to the agent after us, or end it with all that it holds."""
        self._is_wanted = False
        if end:
            if self._sock is not None or self._connect():
                self._end()
            elif pid := self.daemon_pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = self._clock() + _END_S
            while self._pid and self._ended() is None and self._clock() < deadline:
                time.sleep(0.01)
            shutil.rmtree(self.folder, ignore_errors=True)
        self._hang_up()

    @property
    def is_connected(self) -> bool:
        """Whether there was a daemon when last looked."""
        return self._sock is not None

    # --- the process

    def _keep(self) -> None:
        """Have a daemon: connected, or being started."""
        if self._sock is not None:
            if self._is_connected():
                return
            self._hang_up()
            self._notice(t.Severity.WARNING, "the checkpoint daemon died; its snapshots stay, a new daemon takes over")
        if self._connect():
            return
        ended = self._ended()
        if self.daemon_pid():
            return
        if self._has_answered:
            ended = None  # its death was reported when its connection broke, which is before its exit can be seen
        if ended is not None and ended < 0:  # which says nothing of the next one
            text = f"the checkpoint daemon was killed at its start, by signal {-ended}; restarting it"
            self._notice(t.Severity.WARNING, text)
        elif ended not in (None, _TAKEN):
            text = f"the checkpoint daemon ended with {ended} at its start: {self._log_tail()}"
            self._notice(t.Severity.WARNING, text)
            with contextlib.suppress(OSError, UsageError):  # workers wait for it until a reason is reported
                private.shared_folder(self.folder)
                private.write_text(self.folder / _ABSENT, f"{text}\n")
        now = self._clock()
        if now - self._started > _STEADY_S:
            self._delays, self._not_before = _RESTART.delays(), now
        if now >= self._not_before:
            self._start()
            self._started, self._not_before = now, now + next(self._delays)

    def _start(self) -> None:
        command = interpreter.command(
            "holdfast.checkpoint.daemon.daemon", "--folder", str(self.folder), "--node", self._node,
            "--switch", self._switch, "--host", self._host(),
        )  # fmt: skip
        self._has_answered = False
        try:
            private.make_folder(self._log.parent)
            # Not by subprocess: its objects warn when they are dropped while the process still runs, as it should.
            self._pid = os.posix_spawn(
                command[0],
                command,
                interpreter.environment(self._environ),
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
            private.write_text(self._pid_file, f"{self._pid}\n")
        except OSError as error:
            self._notice(t.Severity.WARNING, f"cannot start the checkpoint daemon: {error.strerror}")

    def daemon_pid(self) -> int:
        """The daemon that was started last, by us or an agent before us, if it runs; 0 for none."""
        if self._pid:  # a child of ours, whose pid is not reused before we have reaped it
            return self._pid
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return 0
        return pid if str(self.folder).encode() in command else 0

    def _host(self) -> str:
        try:
            return self._own_address()
        except OSError as error:
            log.warning("checkpoint.address", error=str(error))
            return "127.0.0.1"

    def _connect(self) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with short_path(self.folder, _SOCKET) as path:
                sock.connect(path)
        except OSError:
            sock.close()
            return False
        self._sock, self._has_answered = sock, True
        (self.folder / _ABSENT).unlink(missing_ok=True)
        return True

    def _is_connected(self) -> bool:
        assert self._sock is not None
        try:
            return bool(self._sock.recv(4096))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._ended()  # no zombie, should it have died

    def _end(self) -> None:
        """Ask the daemon to end; kill it if it does not."""
        assert self._sock is not None
        self._sock.settimeout(_END_S)
        content = b""
        try:
            self._sock.sendall(b'{"do": "ping"}\n{"do": "end"}\n')
            while piece := self._sock.recv(4096):
                content += piece
        except OSError:
            with contextlib.suppress(ValueError, KeyError, ProcessLookupError):
                os.kill(self._pid or int(json.loads(content.split(b"\n")[0])["pid"]), signal.SIGKILL)

    def _ended(self) -> int | None:
        """The exit code of the daemon that we started, if it has ended."""
        if not self._pid:
            return None
        try:
            found, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            self._pid = 0
            return None
        if not found:
            return None
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _log_tail(self) -> str:
        try:
            lines = self._log.read_text("utf-8", "replace")[-4096:].strip().splitlines()
        except OSError:
            lines = []
        return f"{lines[-1] if lines else 'nothing'} ({self._log})"

    # --- what it reports

    def _read(self) -> list[Json]:
        """The status of each job, read again where it changed."""
        found = {}
        for path in self.folder.glob(f"*/{_STATUS}"):
            try:
                at = path.lstat().st_mtime_ns
                known = self._jobs.get(path)
                if known is None or known[0] != at:
                    known = at, dict(json.loads(files.head(path, _MOST_STATUS)))
                found[path] = known
            except (OSError, ValueError, TypeError, RecursionError):
                continue
        self._jobs = found
        return [document for _, document in found.values()]

    def _changes(self, documents: list[Json]) -> Iterator[t.Event]:
        """Notices of what is worse or better than when last looked."""
        failing = dict(failures(documents))
        for job, error in failing.items():
            if job not in self._failing:
                text = f"checkpoints of job {job} cannot be stored: {error}; retrying, the snapshots wait in memory"
                yield t.AgentNotice(time.time_ns(), STORE, t.Severity.WARNING, text, job)
        for job in self._failing.keys() - failing.keys():
            text = f"checkpoints of job {job} can be stored again"
            yield t.AgentNotice(time.time_ns(), STORE, t.Severity.INFO, text, job)
        self._failing = failing
        for document in documents:
            repairs = sum(int(one.get("repairs") or 0) for one in document["workers"].values())
            if repairs > self._repairs.get(document["job"], 0):
                text = f"{repairs} MiB of snapshots of job {document['job']} changed in this host's memory; repaired"
                yield self._event(t.Severity.WARNING, text)
            self._repairs[document["job"]] = repairs

    def _notice(self, severity: t.Severity, text: str) -> None:
        self._report(self._event(severity, text))

    def _event(self, severity: t.Severity, text: str) -> t.AgentNotice:
        return t.AgentNotice(time.time_ns(), "checkpoint", severity, text)


def failures(documents: list[Json]) -> Iterator[tuple[str, str]]:
    """Jobs whose store fails, and how. Pure."""
    for document in documents:
        workers = document["workers"].values()
        errors = [one["down"] for one in workers if one.get("down")]
        errors += [failing["error"] for one in workers if (failing := one.get("failing"))]
        if errors:
            yield document["job"], errors[0]


def gauges(documents: list[Json], now: float) -> dict[str, float]:
    """The gauges of the job that reported last: of several workers the one that is furthest behind. Pure.

    `now` in seconds since the epoch. What is not known has no gauge.
    """
    if not documents:
        return {}
    newest = max(documents, key=lambda document: float(document["at"]))
    workers = list(newest["workers"].values())
    shots = [one["snapshot"] for one in workers if one.get("snapshot")]
    peers = [one["peer"] for one in workers if one.get("peer") and one["peer"]["step"] is not None]
    committed = [one["committed"] for one in workers if one.get("committed")]
    uploads = [one["upload"] for one in workers if one.get("upload")]
    found: dict[str, float] = {}
    if shots:
        found["snapshot_step"] = min(one["step"] for one in shots)
        found["snapshot_age_seconds"] = max(0.0, now - min(one["at"] for one in shots))
        found["snapshot_bytes"] = sum(one["bytes"] for one in shots)
    if peers:
        found["snapshot_peer_step"] = min(one["step"] for one in peers)
        found["snapshot_peer_seconds"] = max(one["seconds"] for one in peers)
    if newest["copies"]:
        found["snapshot_copies_bytes"] = sum(one["bytes"] for one in newest["copies"].values())
    if committed:
        last = max(committed, key=lambda one: float(one["step"]))
        found["checkpoint_step"] = last["step"]
        found["checkpoint_age_seconds"] = max(0.0, now - last["at"])
        found["checkpoint_upload_seconds"] = max(one["seconds"] for one in committed if one["step"] == last["step"])
    if written := [one for one in uploads if one["write_seconds"] > 0]:
        seconds = max(one["write_seconds"] for one in written)
        found["checkpoint_upload_bytes_per_second"] = sum(one["bytes"] for one in written) / seconds
    # It fails until something was written: neither a pause between attempts nor a new daemon is a success.
    if any(failures([newest])):
        found["checkpoint_failing"] = 1.0
    elif written or committed:
        found["checkpoint_failing"] = 0.0
    found["snapshot_repaired_chunks"] = sum(int(one.get("repairs") or 0) for one in workers)
    return {key: float(value) for key, value in found.items()}
