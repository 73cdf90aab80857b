"""The checkpoint daemon of a node: uploads snapshots and copies them to other nodes, whichever process dies meanwhile.

    python -m holdfast.checkpoint.daemon.daemon --folder /dev/shm/holdfast-... --node NODE [--switch S] [--host ADDRESS]

The agent starts it, or finds the one of an agent before it. Workers speak to it over a Unix socket in its folder
(`daemon_messages`), other nodes' daemons over TCP (`peer_link`). It ends when the agent says so, or when it has had
nothing to do for long. No torch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base import log, private, service
from holdfast.base.address import format_address
from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.host_memory import keep_freed
from holdfast.base.local_socket import short_path
from holdfast.checkpoint.daemon.job import DaemonJob, Member
from holdfast.checkpoint.daemon.messages import hello_from, join_from, taken_from
from holdfast.checkpoint.daemon.peer_link import PeerServer
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import LOCK, PORT, SOCKET, is_plain

TAKEN = 3
"""Exit code: the folder has a daemon."""
LINE_LIMIT = 64 << 20
_NOTES_LIMIT = 1 << 20
_SWEEP_EVERY_S = 60.0
_ALONE_S = 3600.0
"""A job without a connection for so long is over."""
_IDLE_S = 600.0
_NICE = 5
_LINGER_S = 0.05

Json = dict[str, Any]


class Daemon:
    """One for each folder."""

    def __init__(self, folder: Path, node: str, switch: str = "", host: str = "127.0.0.1") -> None:
        self.folder, self.node, self.switch, self.host = folder, node, switch, host
        self.jobs: dict[str, DaemonJob] = {}
        self.peers = PeerServer(self)
        self._leaving: list[DaemonJob] = []
        """Jobs that are over but for their last uploads."""
        self._connections: set[asyncio.StreamWriter] = set()
        self._last_used = time.monotonic()
        self._stop = asyncio.Event()
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main(self, stop: asyncio.Event) -> int:
        """Serve until `stop`. TAKEN when another daemon has the folder. Raises UsageError."""
        self._loop, self._stop = asyncio.get_running_loop(), stop
        try:
            private.shared_folder(self.folder)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return TAKEN
            self._adopt()
            try:
                address = self.peers.start(self.host, self._last_port())
            except OSError as error:
                raise UsageError(f"cannot listen on {self.host}: {error.strerror}") from None
            private.write_text(self.folder / PORT, f"{address[1]}\n")
            server = await asyncio.start_unix_server(self._serve, sock=_listener(self.folder), limit=LINE_LIMIT)
            listens = format_address(address[0], address[1])
            log.event("daemon.ready", folder=str(self.folder), node=self.node, address=listens)
            sweeping = asyncio.create_task(self._sweep_often())
            await stop.wait()
            sweeping.cancel()
            server.close()
            for writer in list(self._connections):
                writer.close()
            await self.peers.close()
            for job in [*self.jobs.values(), *self._leaving]:
                job.stop()
            if self._is_ending:
                shutil.rmtree(self.folder, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    (self.folder / SOCKET).unlink()
            return 0
        finally:
            os.close(lock)

    def sweep(self, now: float) -> None:
        """Remove jobs that have had no connection for long; end when no job needs this daemon."""
        for job in list(self.jobs.values()):
            if job.is_connected:
                job.seen = now
            elif now - job.seen > _ALONE_S:
                log.event("job.swept", job=job.name)
                self._forget(job)
        for job in self._leaving[:]:
            if not job.is_uploading or now - job.seen > _ALONE_S:
                job.stop()
                self._leaving.remove(job)
        if self.jobs or self._leaving or self._connections:
            self._last_used = now
        if now - self._last_used > _IDLE_S or not (self.folder / SOCKET).exists():
            log.event("daemon.idle")
            self._is_ending = not self.jobs
            self._stop.set()

    # --- what peers' threads ask (peer_link.Keeping)

    def secret_of(self, job: str) -> bytes | None:
        found = self.jobs.get(job)
        return found.secret if found is not None else None

    def generation_of(self, job: str) -> int:
        found = self.jobs.get(job)
        return found.generation if found is not None else 0

    def received(self, node: str, what: Description, snapshot: Snapshot) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._received, node, what, snapshot)

    def _received(self, node: str, what: Description, snapshot: Snapshot) -> None:
        job = self.jobs.get(what.job)
        if job is not None:
            job.received(node, what, snapshot, time.monotonic())

    # --- workers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _uid(writer.get_extra_info("socket")) != os.getuid():
            writer.close()
            return
        self._connections.add(writer)
        session = _Session(self, writer)
        try:
            while line := await reader.readline():
                if not await session.handle(line):
                    break
        except (OSError, ValueError) as error:  # a reset, or a line without end
            log.debug("worker.lost", error=str(error))
        finally:
            session.end(time.monotonic())
            self._connections.discard(writer)
            self._last_used = time.monotonic()
            writer.close()

    def job(self, name: str) -> DaemonJob:
        """The job, from now on. Raises UsageError."""
        if name not in self.jobs:
            try:
                self.jobs[name] = DaemonJob(name, self.folder / name, self.node, time.monotonic())
            except OSError as error:
                raise UsageError(f"{self.folder / name}: {error.strerror}") from None
        return self.jobs[name]

    def left(self, job: DaemonJob, forget: bool) -> None:
        """A worker is done with its job."""
        if forget and not job.is_connected and self.jobs.get(job.name) is job:
            log.event("job.forgotten", job=job.name)
            self._forget(job, is_stopped=False)

    def end(self) -> None:
        """Leave, and leave nothing behind."""
        assert self._loop is not None
        self._is_ending = True
        self._loop.call_later(_LINGER_S, self._stop.set)  # the answer goes out before

    def _forget(self, job: DaemonJob, is_stopped: bool = True) -> None:
        del self.jobs[job.name]
        job.is_forgotten = True
        if is_stopped:
            job.stop()
        else:
            job.finish()
            self._leaving.append(job)
            job.seen = time.monotonic()
        shutil.rmtree(job.folder, ignore_errors=True)

    def _adopt(self) -> None:
        """What a daemon before this one has left stays until it is swept."""
        for path in self.folder.iterdir():
            if path.is_dir() and is_plain(path.name):
                self.job(path.name)

    def _last_port(self) -> int:
        """Where the daemon before this one listened: other nodes know that."""
        try:
            return int((self.folder / PORT).read_text())
        except (OSError, ValueError):
            return 0

    async def _sweep_often(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self.sweep(time.monotonic())


class _Session:
    """One connection: of a worker, or of the agent."""

    def __init__(self, daemon: Daemon, writer: asyncio.StreamWriter) -> None:
        self._daemon, self._writer = daemon, writer
        self._job: DaemonJob | None = None
        self._member: Member | None = None

    async def handle(self, line: bytes) -> bool:
        """Answer one request; whether to go on."""
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("no object")
        except ValueError:
            return False
        try:
            answer = {"ok": True, **await self._obey(message)}
        except HoldfastError as error:
            answer = {"ok": False, "error": " ".join(str(error).split())}
        except Exception as error:
            log.exception("daemon.bug", do=str(message.get("do")))
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        self.report(answer)
        return not self._writer.is_closing()

    def report(self, message: Json) -> None:
        """One line to the other end; one that does not read is dropped."""
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > _NOTES_LIMIT:
            self._writer.transport.abort()
            return
        self._writer.write(json.dumps(message).encode() + b"\n")

    def end(self, now: float) -> None:
        """The connection is gone."""
        if self._job is not None:
            self._job.seen = now
        if self._member is not None and self._member.report == self.report:
            self._member.report = None
            self._member.job.changed()

    async def _obey(self, message: Json) -> Json:
        match message.get("do"):
            case "ping":
                return {"pid": os.getpid(), "node": self._daemon.node}
            case "end":
                self._daemon.end()
                return {}
            case "hello":
                return self._hello(message)
            case "join":
                member = self._welcome()
                await member.job.join(member, join_from(message))
                member.report = self.report
                return {}
            case "snapshot":
                await self._current().take(taken_from(message))
                return {}
            case "leave":
                return self._leave(bool(message.get("forget", False)))
            case other:
                raise UsageError(f"no such request: {other!r}")

    def _hello(self, message: Json) -> Json:
        hello = hello_from(message)
        self._job = self._daemon.job(hello.job)
        self._member = self._job.greet(hello)
        return {
            "node": self._daemon.node, "switch": self._daemon.switch, "address": list(self._daemon.peers.address),
        }  # fmt: skip

    def _leave(self, forget: bool) -> Json:
        member = self._welcome()
        job = member.job
        self._member, self._job = None, None
        if member.report == self.report:
            member.report = None
        self._daemon.left(job, forget)
        return {}

    def _welcome(self) -> Member:
        if self._member is None:
            raise UsageError("send hello first")
        return self._member

    def _current(self) -> Member:
        member = self._welcome()
        if member.job.members.get(member.hello.worker) is not member:
            raise UsageError(f"generation {member.hello.generation} of job {member.job.name} ended, or did not join")
        return member


def _listener(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    with short_path(folder, SOCKET) as path:
        listener.bind(path)
    listener.listen(128)
    return listener


def _uid(sock: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until asked to end; the exit code, as in holdfast.base.service, or TAKEN."""
    parser = argparse.ArgumentParser(prog="holdfast-checkpoint-daemon", description="Checkpoint daemon of a node.")
    parser.add_argument("--folder", type=Path, required=True, help="folder in memory for snapshots")
    parser.add_argument("--node", required=True, help="name of this node")
    parser.add_argument("--switch", default="", help="switch of this node")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on for copies of other nodes")
    options = parser.parse_args(arguments)
    service.give_way()
    keep_freed()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    log.configure()

    async def serve(stop: asyncio.Event) -> int:
        return await Daemon(options.folder, options.node, options.switch, options.host).main(stop)

    return service.run(serve)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a dead store must not hold us up
