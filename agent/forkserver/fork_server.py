"""The fork server: one per node, with everything heavy imported, from which workers are forked in milliseconds.

    python -m holdfast.agent.forkserver.fork_server --run-dir DIR [--preload MODULE,...] [--wanted MODULE,...]

It is started by the agent in a session of its own and outlives it, so that workers keep a parent that learns how
they end. One thread, always. It speaks JSON lines on `DIR/warm.sock`: requests `{"id", "do", ...}`, answers `{"id",
"ok", ...}` or `{"id", "error"}`, and to all clients, when it happens, `{"exited": WorkerExited}` and `{"store_exited":
{"job", ...}}`. Imports run before the first answer: a client connects at once and waits for it.

The fork server of another agent of this host may be forked from this one (`server_forks`): then nothing is imported.
"""

import argparse
import fcntl
import functools
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver import forked_children, output_memory, patient_streams, preloading
from holdfast.agent.forkserver.forked_workers import ForkedWorkers
from holdfast.agent.forkserver.json_lines import LOCK, SOCKET, Connection, peer_uid
from holdfast.agent.forkserver.server_forks import ServerForks
from holdfast.base import private, service
from holdfast.base.local_socket import short_path

IDLE_EXIT_S = 600.0
"""Without workers and clients for so long it ends: an agent that never comes back must not cost memory forever."""


class Server:
    """The loop: sockets and process descriptors in, requests carried out, ends reported."""

    def __init__(
        self,
        options: "Options",
        listener: socket.socket,
        preloaded: preloading.Preloaded,
        environ: Mapping[str, str],
    ) -> None:
        """`environ`: what this process was started in."""
        self.options, self.preloaded = options, preloaded
        self.listener = listener
        self.clients: set[Connection] = set()
        self.selector = selectors.DefaultSelector()
        self.workers = ForkedWorkers(options.run_dir, self.selector, self.broadcast, self.release)
        self.forks = ServerForks(self.selector, environ, preloaded.packages, self.workers.release)
        self.sample = self._sample_output()
        self.wake_in, self.wake_out = socket.socketpair()
        self.running = True
        self.busy_until = time.monotonic()
        self.do: dict[str, Callable[[Connection, dict[str, Any]], dict[str, Any] | None]] = {
            "hello": self.hello,
            "start_worker": self.start_worker,
            "start_store": self.start_store,
            "stop_store": lambda _, ask: {"stopped": self.workers.stores.stop(ask["job"])},
            "kill": lambda _, ask: {
                "killed": self.workers.kill(ask["job"], ask["generation"], ask["rank"], ask["signal"])
            },
            "ack_exit": lambda _, ask: {"known": self.workers.ack((ask["job"], ask["generation"], ask["rank"]))},
            "fork_server": self.fork_server,
            "shutdown": self.shutdown,
        }

    def _sample_output(self) -> int:
        """An empty output in memory, by which the agent finds out whether it could read one; -1 when there is none."""
        try:
            fd = output_memory.create()
        except OSError:
            return -1
        self.workers.hold(fd)
        return fd

    def serve(self) -> None:
        """Run until a client or SIGTERM asks it to end, or until it is idle for too long."""
        for sock in (self.wake_in, self.wake_out):
            sock.setblocking(False)
        signal.set_wakeup_fd(self.wake_out.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # only to wake the loop
        self.selector.register(self.wake_in, selectors.EVENT_READ, self.on_signal)
        self.selector.register(self.listener, selectors.EVENT_READ, self.on_connect)
        self.workers.watch_kept()
        while self.running:
            for key, mask in self.selector.select(self.workers.patience()):
                key.data(mask)
            self.workers.collect(is_read=bool(self.clients))
            now = time.monotonic()
            if self._is_needed():
                self.busy_until = now
            if self.options.idle_exit and now - self.busy_until > self.options.idle_exit:
                self.running = False
        self.workers.end_all()
        for client in self.clients:
            client.close()

    def _is_needed(self) -> bool:
        """A job's fork server waits for no agent: the job may have ended, and the next one has another."""
        return bool(self.workers.running or (self.workers.exits if self.options.wanted else self.clients))

    def release(self) -> None:
        """In a forked child: let go of what is the parent's. The selector's set itself is shared, so only close it."""
        self.selector.close()
        for sock in (self.listener, self.wake_in, self.wake_out):
            sock.close()
        for fd in self.forks.descriptors():
            os.close(fd)
        for client in self.clients:
            client.close()

    def broadcast(self, message: dict[str, Any]) -> None:
        for client in list(self.clients):
            self.answer(client, message)

    def answer(self, client: Connection, message: dict[str, Any]) -> None:
        client.send(message)
        self.settle(client)

    def settle(self, client: Connection) -> None:
        """Wait for what the client's state asks for; forget it when it is lost."""
        if client not in self.clients:
            return
        if client.lost:
            self.clients.discard(client)
            self.selector.unregister(client.sock)
            client.close()
            return
        events = selectors.EVENT_READ | (0 if client.flush() else selectors.EVENT_WRITE)
        self.selector.modify(client.sock, events, lambda mask: self.on_client(client))

    def on_signal(self, mask: int) -> None:
        with suppress(BlockingIOError):
            if {signal.SIGTERM, signal.SIGINT} & set(self.wake_in.recv(64)):
                self.running = False

    def on_connect(self, mask: int) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        if peer_uid(sock) not in (os.getuid(), 0):
            sock.close()
            return
        client = Connection(sock)
        self.clients.add(client)
        self.selector.register(sock, selectors.EVENT_READ, lambda mask: self.on_client(client))

    def on_client(self, client: Connection) -> None:
        for ask in client.receive():
            reply: dict[str, Any] | None
            try:
                reply = self.do[ask["do"]](client, ask)
            except KeyError as error:
                reply = {"error": f"bad request {ask.get('do')!r}: unknown or without {error}"}
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            if reply is not None:
                client.send({"id": ask.get("id"), "ok": "error" not in reply, **reply})
        self.settle(client)

    def start_worker(self, client: Connection, ask: dict[str, Any]) -> dict[str, Any]:
        pid = self.workers.start(ask["spec"])
        return {"pid": pid, "outputs": self.workers.reported_outputs()}

    def hello(self, client: Connection, ask: dict[str, Any]) -> dict[str, Any]:
        workers = [asdict(worker) for worker in self.workers.kept()]
        return {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "preload_errors": self.preloaded.errors,
            "missing": self.preloaded.missing,
            "wanted": self.options.wanted,
            "threads": forked_children.threads(),
            "workers": workers,
            "exits": [asdict(ended) for ended in self.workers.exits.values()],
            "outputs": self.workers.reported_outputs(),
            "sample": self.sample,
            "stores": self.workers.stores.ports(),
        }

    def start_store(self, client: Connection, ask: dict[str, Any]) -> None:
        def reply(answer: dict[str, Any]) -> None:
            self.answer(client, {"id": ask.get("id"), "ok": "error" not in answer, **answer})

        self.workers.stores.start(ask["job"], ask["host"], reply)

    def fork_server(self, client: Connection, ask: dict[str, Any]) -> dict[str, Any] | None:
        """Fork one that serves another folder, in its asker's place: its `args`, `env`, `cwd` and `umask`."""
        try:
            options = parse(ask["args"])
        except SystemExit:
            return {"error": "arguments of another version"}
        mine = (self.options.preload, self.options.wanted)
        refused = self.forks.refusal(client, ask)
        if refused or (options.preload, options.wanted) != mine:
            return {"error": refused or "this fork server preloads other modules"}

        def reply(answer: dict[str, Any]) -> bool:
            if client.lost or client.has_left():
                return False
            self.answer(client, {"id": ask.get("id"), "ok": "error" not in answer, **answer})
            return not client.lost

        serve = functools.partial(run_forked, options, self.preloaded)
        self.forks.fork(options.run_dir, ask, serve, reply)
        return None

    def shutdown(self, client: Connection, ask: dict[str, Any]) -> dict[str, Any]:
        self.running = False
        self.workers.end_all()
        return {}


def listen(run_dir: Path) -> tuple[socket.socket, int] | None:
    """The listening socket and the lock that makes us the only one; None when another fork server serves here."""
    private.make_folder(run_dir)
    lock = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    (run_dir / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(run_dir, SOCKET) as path:
        listener.bind(path)
    listener.listen(16)
    listener.setblocking(False)
    return listener, lock


@dataclass(frozen=True, slots=True)
class Options:
    run_dir: Path
    preload: list[str]
    wanted: list[str]
    """What is to be imported for one job, whose fork server this then is."""
    folder: str
    left_out: dict[str, str]
    sockets: list[int] | None
    idle_exit: float


def parse(args: Sequence[str]) -> Options:
    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser(prog="python -m holdfast.agent.forkserver.fork_server")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the socket and the record of exits")
    parser.add_argument("--preload", type=names, default=[], help="modules to import ahead, separated by commas")
    parser.add_argument("--wanted", type=names, default=[], help="of one job, which is refused if one is missing")
    parser.add_argument("--folder", default="", help="where those are looked for first")
    parser.add_argument("--left-out", default="", help="those that no worker could be forked after, and why")
    parser.add_argument("--sockets", type=int, nargs=2, help="listening socket and lock, inherited across a restart")
    parser.add_argument("--idle-exit", type=float, default=IDLE_EXIT_S, help="seconds without work; 0: never")
    found = parser.parse_args(args)
    return Options(
        found.run_dir.absolute(), found.preload, found.wanted, found.folder, preloading.from_text(found.left_out),
        found.sockets, found.idle_exit,
    )  # fmt: skip


def main() -> int:
    options = parse(sys.argv[1:])
    patient_streams.install()
    service.give_way()  # the agent may come first; the training that it watches may not
    if not options.sockets:
        # Whatever the agent left open across the start: workers would keep it open until they exit.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    environ = dict(os.environ)
    _one_thread()
    if options.sockets:
        listener, lock = socket.socket(fileno=options.sockets[0]), options.sockets[1]
        for descriptor in options.sockets:
            os.set_inheritable(descriptor, False)
    elif (taken := _take(options.run_dir)) is not None:
        listener, lock = taken
    else:
        return 3

    def begin_anew(left_out: Mapping[str, str]) -> None:
        # Clients that connected meanwhile wait at the socket and notice nothing. The last of repeated flags counts.
        sockets = listener.fileno(), lock
        for descriptor in sockets:
            os.set_inheritable(descriptor, True)
        reported = ["--left-out", preloading.to_text(left_out), "--sockets", *map(str, sockets)]
        os.execv(sys.executable, [*sys.orig_argv, *reported])

    with service.gc_paused(), preloading.looked_up_in(options.folder):
        preloaded = preloading.preload(options.preload, options.wanted, options.left_out, begin_anew)
    return _serve(options, listener, lock, preloaded, environ)


def run_forked(options: Options, preloaded: preloading.Preloaded, listens: Callable[[], None]) -> int:
    """`main` of a fork server that was forked from one with the same modules."""
    environ = dict(os.environ)
    _one_thread()
    if (taken := _take(options.run_dir)) is None:
        return 3
    listens()
    return _serve(options, *taken, preloaded, environ)


def _one_thread() -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        # A pool of threads would not survive the fork; a job's own number is applied in the worker.
        os.environ[name] = "1"


def _take(run_dir: Path) -> tuple[socket.socket, int] | None:
    if (taken := listen(run_dir)) is None:
        print(f"a fork server already serves {run_dir}", file=sys.stderr)
    return taken


def _serve(
    options: Options, listener: socket.socket, lock: int, preloaded: preloading.Preloaded, environ: Mapping[str, str]
) -> int:
    gc.collect()
    gc.freeze()  # what exists now is never freed: no collection in a worker should copy its pages
    if (count := forked_children.threads()) != 1:
        print(f"the preloaded modules left {count} threads: forked workers may hang", file=sys.stderr, flush=True)
    server = Server(options, listener, preloaded, environ)
    server.workers.hold(lock)
    server.serve()
    (options.run_dir / SOCKET).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    # Under its real name, so that a worker's `__main__` is the user's alone.
    from holdfast.agent.forkserver import fork_server as warm

    sys.exit(warm.main())
