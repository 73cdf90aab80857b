"""The workers of the fork server: started, watched by process descriptor, ended, remembered until acknowledged."""

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver import forked_children, output_memory
from holdfast.agent.forkserver.journal import Started, WorkerJournal, boot_id, key_of
from holdfast.agent.forkserver.stores import Stores
from holdfast.agent.forkserver.worker_spec import Key, WorkerSpec, mark
from holdfast.agent.probe_file import injections
from holdfast.agent.processes import holders
from holdfast.agent.processes import tree as process_tree
from holdfast.wire.messages import KeptWorker
from holdfast.wire.types import WorkerExited

ALL_RANKS = -1
SWEEP_S = 0.05
IDLE_S = 1.0


@dataclass(slots=True)
class _Running:
    started: Started
    pidfd: int
    ours: bool  # False: started by a fork server before us, so the kernel reports that it ended but not how
    killed: bool = False


class ForkedWorkers:
    """All workers of this node's fork server, and through `stores` its rendezvous stores."""

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
        self.release_loop = release
        self.running: dict[Key, _Running] = {}
        self.journal = WorkerJournal(run_dir)
        self.exits: dict[Key, WorkerExited] = self.journal.exits
        self.stores = Stores(run_dir, selector, broadcast, self.release)
        self.oom = forked_children.ChildOomWatch()
        self.outputs: dict[Key, tuple[int, int]] = {}
        """Output in memory of the workers here, until their end is acknowledged."""
        self._paths: dict[Key, tuple[str, str]] = {}  # where it goes from there, as far as that is known
        self._held: list[int] = []
        self._unreaped: list[int] = []  # descriptors of workers that ended under a tracer, which keeps them as zombies
        self._sweeps: dict[Key, int] = {}  # worker that ended badly: its pid, for what it may have left behind

    def hold(self, fd: int) -> None:
        """Keep a descriptor that no child may keep."""
        self._held.append(fd)

    def release(self) -> None:
        """In a forked child: close what is the parent's."""
        self.release_loop()
        self.journal.close()
        outputs = [fd for pair in self.outputs.values() for fd in pair]
        pidfds = [*self._unreaped, *(one.pidfd for one in self.running.values())]
        for fd in (*self._held, *outputs, *pidfds, *self.stores.descriptors()):
            os.close(fd)

    def start(self, data: dict[str, Any]) -> int:
        """Start a worker; its process id. One that was started before, even if it has ended, is not started again."""
        spec = WorkerSpec.from_json(data)
        if (known := self.running.get(spec.key)) is not None:
            return known.started.worker.pid
        if (ended := self.exits.get(spec.key)) is not None:
            return ended.pid
        self.oom.look()
        outputs = _in_memory() if spec.in_memory else None
        if outputs is None:
            theirs = forked_children.open_files(spec.out_path, spec.err_path)
        else:
            theirs = os.dup(outputs[0]), os.dup(outputs[1])
        pid = forked_children.fork(lambda: forked_children.run_worker(spec, self.run_dir), self.release, theirs)
        if outputs is not None:
            self.outputs[spec.key] = outputs
            self._paths[spec.key] = spec.out_path, spec.err_path
        process = process_tree.read(pid)
        worker = KeptWorker(spec.job, spec.generation, spec.rank, spec.local_rank, pid, running=True)
        started = Started(worker, process.start_ticks if process else 0, boot_id())
        self.journal.start(started)
        self._watch(started, ours=True)
        return pid

    def watch_kept(self) -> None:
        """Take over the workers that a fork server before us left behind."""
        for key, started in self.journal.started.items():
            try:
                self._watch(started, ours=False)
            except ProcessLookupError:
                self._ended(key, started, (-1, 0, False), oom=False)
                continue
            if not started.alive():  # ended, and its process id was reused
                self._unwatch(key)
                self._ended(key, started, (-1, 0, False), oom=False)
            elif (outputs := _of_process(started.worker.pid)) is not None:
                self.outputs[key] = outputs

    def reported_outputs(self) -> list[list[Any]]:
        """Job, generation, rank, and the descriptors here of standard output and error."""
        return [[*key, *pair] for key, pair in self.outputs.items()]

    def kept(self) -> list[KeptWorker]:
        """Workers that run, and those whose exit is not acknowledged, as of this moment."""
        for key in list(self.running):
            self._on_exit(key)  # it may have ended in this round of the loop
        ended = [KeptWorker(e.job, e.generation, e.rank, -1, e.pid, running=False) for e in self.exits.values()]
        return [one.started.worker for one in self.running.values()] + ended

    def kill(self, job: str, generation: int, rank: int, number: int) -> int:
        """Send a signal to a worker; how many processes, or for other signals than SIGKILL groups, got it.

        SIGKILL ends all that the worker has started. SIGUSR1 and SIGUSR2 go to the worker alone, for a child that
        expects none would die of it; other signals go to its process group. Rank -1: all of the job, up to and
        including the generation. A worker that is not there is no error.
        """
        for key in list(self.running):
            self._on_exit(key)  # one that ended before was not killed by us
        keys = [
            key
            for key in self.running
            if key == (job, generation, rank) or (rank == ALL_RANKS and key[0] == job and key[1] <= generation)
        ]
        pids = [self.running[key].started.worker.pid for key in keys]
        if number == signal.SIGKILL:
            for key in keys:
                self.running[key].killed = True
            return process_tree.kill_tree(pids, number, [mark(key) for key in keys]) if keys else 0
        count = 0
        for pid in pids:
            try:
                (os.kill if number in (signal.SIGUSR1, signal.SIGUSR2) else os.killpg)(pid, number)
            except ProcessLookupError:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)  # so young that it does not lead its group yet
            count += 1
        return count

    def ack(self, key: Key) -> bool:
        """Forget how a worker ended; False when that is forgotten already."""
        if self.exits.pop(key, None) is None:
            return False
        self.journal.ack(key)
        self._paths.pop(key, None)
        for fd in self.outputs.pop(key, ()):
            os.close(fd)
        return True

    def patience(self) -> float:
        """Seconds until `tend` wants to run again."""
        is_ending = any(one.killed for one in self.running.values())
        return SWEEP_S if self._sweeps or is_ending else IDLE_S

    def collect(self, is_read: bool) -> None:
        """What is due without any event: end what dead workers left behind, keep an eye on the OOM killer.

        `is_read`: is there an agent that reads what workers print?
        """
        if self.running:
            self.oom.look()
        for key in [key for key, one in self.running.items() if one.ours]:
            self._on_exit(key)  # of one that ends under a tracer no descriptor reports it
        self._unreaped = [fd for fd in self._unreaped if not _is_reaped(fd)]
        self._bound_outputs(is_read)
        self.journal.retry()
        sweeps = self._sweeps
        if sweeps and not process_tree.kill_tree(list(sweeps.values()), signal.SIGKILL, list(map(mark, sweeps))):
            sweeps.clear()

    def _bound_outputs(self, is_read: bool) -> None:
        """No process reads, or not fast enough: the oldest goes, to the disk unless another process writes it there."""
        for key, pair in self.outputs.items():
            for fd, where in zip(pair, self._paths.get(key, ("", "")), strict=True):
                with suppress(OSError):
                    start, end = output_memory.bound(fd)
                    if end > start:
                        if where and not is_read:
                            output_memory.spill(fd, where, end)
                        output_memory.give_back(fd, start, end)

    def end_all(self, deadline_s: float = 5.0) -> None:
        """Kill all workers and stores and wait for them."""
        end = time.monotonic() + deadline_s
        keys = list(self.running)
        for key in keys:
            self.running[key].killed = True
        pids = [self.running[key].started.worker.pid for key in keys]
        if keys:
            process_tree.kill_tree(pids, signal.SIGKILL, [mark(key) for key in keys], deadline_s)
        for key in keys:
            while key in self.running and time.monotonic() < end:
                self._on_exit(key)
                time.sleep(0.001 if key in self.running else 0)
        for job in list(self.stores.ports()):
            self.stores.stop(job)

    def _watch(self, started: Started, ours: bool) -> None:
        key = key_of(started.worker)
        pidfd = os.pidfd_open(started.worker.pid)
        self.running[key] = _Running(started, pidfd, ours)
        self.selector.register(pidfd, selectors.EVENT_READ, lambda mask: self._on_exit(key))

    def _unwatch(self, key: Key) -> _Running:
        one = self.running.pop(key)
        self.selector.unregister(one.pidfd)
        os.close(one.pidfd)
        return one

    def _on_exit(self, key: Key) -> None:
        one = self.running.get(key)
        if one is None:
            return
        if one.ours:
            how = forked_children.reap(one.pidfd)
            if how is None:
                # Its tracer has taken no note of its end, and until then the kernel does not report it.
                how = holders.ended_under_tracer(one.started.worker.pid)
                if how is None:
                    return
                self._unreaped.append(os.dup(one.pidfd))
        elif one.started.alive():
            return
        else:
            how = (-1, 0, False)
        self._unwatch(key)
        pid = one.started.worker.pid
        injected = injections.finish_oom(pid)
        # In this order: a kill that has an explanation uses up its count, so that it explains no other.
        oom = how[1] == signal.SIGKILL and (not one.killed or injected) and (self.oom.explains() or injected)
        self._ended(key, one.started, how, oom, one.killed)
        if how[0] != 0:
            self._sweeps[key] = pid

    def _ended(self, key: Key, started: Started, how: tuple[int, int, bool], oom: bool, ordered: bool = False) -> None:
        pid, (code, number, dumped) = started.worker.pid, how
        ended = WorkerExited(
            *key, pid, time.time_ns(), code, signal=number, core_dumped=dumped, oom_killed=oom, ordered=ordered
        )
        self.exits[key] = ended
        self.journal.exit(ended)  # before it is reported: what was reported must not be forgotten
        self.broadcast({"exited": asdict(ended)})


def _is_reaped(pidfd: int) -> bool:
    if forked_children.reap(pidfd) is None:
        return False
    os.close(pidfd)
    return True


def _in_memory() -> tuple[int, int] | None:
    try:
        out = output_memory.create()
    except OSError:
        return None
    try:
        return out, output_memory.create()
    except OSError:
        os.close(out)
        return None


def _of_process(pid: int) -> tuple[int, int] | None:
    """The output in memory of a worker that a fork server before us started; None where it has none of its own."""
    paths = [output_memory.path(pid, number) for number in (1, 2)]
    if not all(map(output_memory.is_ours, paths)):
        return None
    found: list[int] = []
    try:
        for path in paths:
            found.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        for fd in found:
            os.close(fd)
        return None
    return found[0], found[1]
