"""The rendezvous stores of the fork server: one child per job, its port learned through a pipe."""

import json
import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver import forked_children
from holdfast.agent.forkserver import store as warm_store
from holdfast.agent.forkserver.output_memory import FULL

Reply = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class _Store:
    pid: int
    pidfd: int
    pipe: int  # -1 once it has answered
    port: int = 0
    waiting: list[Reply] = field(default_factory=list)


class Stores:
    """Stores by job. They outlive generations, until stopped or until the fork server ends."""

    def __init__(
        self,
        run_dir: Path,
        selector: selectors.BaseSelector,
        broadcast: Callable[[dict[str, Any]], None],
        release: Callable[[], None],
    ) -> None:
        self.run_dir = run_dir
        self.selector = selector
        self.broadcast = broadcast
        self.release = release
        self.running: dict[str, _Store] = {}

    def start(self, job: str, host: str, reply: Reply) -> None:
        """Make sure that the job has a store; `reply` gets `{"port": N}` or `{"error": TEXT}`, later perhaps."""
        if (store := self.running.get(job)) is not None:
            if store.port:
                reply({"port": store.port})
            else:
                store.waiting.append(reply)
            return
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def body() -> int:
            os.close(reading)
            return warm_store.serve(host, writing)

        try:
            pid = forked_children.fork(body, self.release, self._logs())
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        store = _Store(pid, os.pidfd_open(pid), reading, waiting=[reply])
        self.running[job] = store
        self.selector.register(reading, selectors.EVENT_READ, lambda mask: self._on_answer(store))
        self.selector.register(store.pidfd, selectors.EVENT_READ, lambda mask: self._on_exit(job))

    def _logs(self) -> tuple[int, int]:
        log = str(self.run_dir / "store.log")
        try:
            return forked_children.open_files(log, log)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return forked_children.open_files(os.devnull, os.devnull)  # its words are worth less than the job

    def stop(self, job: str) -> bool:
        """End the job's store; False when there is none."""
        if (store := self.running.get(job)) is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(store.pid, signal.SIGKILL)
        return True

    def ports(self) -> dict[str, int]:
        """The port by job, 0 while it starts."""
        return {job: store.port for job, store in self.running.items()}

    def descriptors(self) -> list[int]:
        return [fd for store in self.running.values() for fd in (store.pidfd, store.pipe) if fd >= 0]

    def _on_answer(self, store: _Store) -> None:
        if store.pipe < 0:  # closed by `_on_exit` in the same round of the loop
            return
        try:
            answer = json.loads(os.read(store.pipe, 1 << 16))
        except BlockingIOError:
            return
        except ValueError:
            answer = {"error": "the endpoint's process ended before it was ready; see store.log"}
        self.selector.unregister(store.pipe)
        os.close(store.pipe)
        store.pipe = -1
        store.port = answer.get("port", 0)
        waiting, store.waiting = store.waiting, []
        for reply in waiting:
            reply(answer)

    def _on_exit(self, job: str) -> None:
        store = self.running[job]
        how = forked_children.reap(store.pidfd)
        if how is None:
            return
        if store.pipe >= 0:
            self._on_answer(store)
        del self.running[job]
        self.selector.unregister(store.pidfd)
        os.close(store.pidfd)
        if store.port:  # one that never served has been answered with its error
            self.broadcast({"store_exited": {"job": job, "pid": store.pid, "code": how[0], "signal": how[1]}})
