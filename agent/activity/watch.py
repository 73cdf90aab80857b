"""What the agent sees from outside of a worker at a standstill: evidence on whether it is dead, busy or idle.

Two speeds. A quick look, two files of the kernel, goes with every frame. A close look (`close_look`) is made beside the
heartbeat, in a thread that may block. Both are paid for by the clock: what takes longer is done less often.
"""

import math
import os
import time
from collections.abc import Callable

from holdfast.agent.activity.close_look import CloseLook, Sighting
from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.operations import NcclOperations
from holdfast.agent.activity.standstill import DISTURBED, ActivityWatch
from holdfast.agent.activity.threads.images import Images
from holdfast.agent.processes.aside import Aside, Lane
from holdfast.base import log
from holdfast.wire import types as t

STANDS = 0.2
"""Seconds without a move after which a worker is watched."""
CLOSELY = 0.2
"""... and after which it is looked at closely; not before its usual step is over."""
OFTEN = 3.0
"""Seconds from when it is time for close looks, in which one goes with each frame; then once a second."""
FIRST_LOOKS = 10
"""So many go with each frame in any case: a busy host makes them late, and few of them prove nothing."""
SELDOM = 1.0
_UNUSUAL = 0.3
"""Seconds beyond its usual step."""
STEPS = 0.8
SHARE, SHARE_FIRST = 0.01, 0.15
"""Of a core that close looks may take, later on and in the first seconds of a standstill."""
SILENT_S = 0.3
"""Seconds without a tick of the probe after which its thread waits for the interpreter's lock, if for anything."""
_OFTEN_AGAIN_S = 60.0
"""Seconds after looks that were frequent because of a disturbance, before another one makes them so."""
_TWICE = 0.12
"""Seconds between the first close look and the second, without which it says nothing."""
_WAKES = 0.002

_Worker = tuple[str, int]  # its job and its rank there: jobs that share a node may have the same ranks


class Activities:
    """Of all workers of this node. `attach` and `settle` belong to a frame; neither blocks."""

    def __init__(
        self,
        proc: str = "/proc",
        clock: Callable[[], float] = time.monotonic,
        host: HostLook | None = None,
        aside: Aside | None = None,
        operations: NcclOperations | None = None,
    ) -> None:
        self._proc, self._clock = proc, clock
        self._host = host or HostLook(proc)
        self._aside = aside or Aside("activity", clock=clock)
        self._watches: dict[_Worker, ActivityWatch] = {}
        self._seen_first: dict[_Worker, tuple[int, float]] = {}
        self._gpus: dict[int, bool] = {}  # process -> whether it was ever seen to hold a GPU
        self._present: set[_Worker] = set()
        self._median: dict[_Worker, float] = {}
        self._blocked: set[str] = set()
        self._failed: set[int] = set()
        self._images = Images(proc)
        self._disturbed_at = self._often_until = -math.inf
        self._not_before = 0.0
        self._is_primed = False
        self._cost = 0.0
        self.uses: Callable[[int], t.GpuUse] = lambda pid: t.GpuUse.UNKNOWN
        """What the GPUs of a process do; set by the code that asks them."""
        self.operations = operations or NcclOperations(clock=clock, proc=proc)
        self.leaders: Callable[[], list[int]] = list
        """Processes of Holdfast from which workers and their rendezvous store descend; set by their owner."""

    def attach(
        self,
        sample: t.WorkerSample,
        path: str = "",
        tick_thread: int = 0,
        now: float | None = None,
        events: tuple[int, int] = (0, 0),
        handlers: int = 0,
        services: Callable[[], frozenset[int]] = frozenset,
    ) -> t.WorkerSample:
        """The sample with what is seen of its worker, if that stands. `path`: of its probe file. `events`: those that
        its timers recorded on its GPU, and those that have come. `services`: the threads that torch started for it.

        `now` is the instant of the sample's ages, monotonic seconds: any later one would look like a move.
        """
        now = self._clock() if now is None else now
        sample = self._images.seen(sample, tick_thread)
        worker = sample.job, sample.rank
        self._present.add(worker)
        last_move = self._last_move(sample, now)
        watch = self._watches.get(worker)
        if watch is not None and (watch.pid != sample.pid or last_move > watch.last_move + _WAKES):
            self._forget(worker)
            watch = None
        if not sample.pid or now - last_move <= STANDS:
            return sample
        if watch is None:
            closely = CloseLook(sample.pid, self._host, mark_of(path), tick_thread)
            has_gpu = self._gpus.get(sample.pid, False)
            watch = self._watches[worker] = ActivityWatch(sample.pid, now, last_move, closely, self._proc, has_gpu)
            if now - self._disturbed_at < DISTURBED:
                watch.disturb(self._disturbed_at)
        self._median[worker] = sample.median_step
        watch.look(now)
        watch.counts.count(now, *events)
        watch.closely.is_silent, watch.closely.handlers = sample.tick_age > SILENT_S, handlers
        watch.closely.services = services()
        sample = sample._replace(standing=watch.standing(now, sample.standing))
        if not watch.has_gpu:
            return sample._replace(activity=watch.activity(now, t.GpuUse.UNKNOWN))
        watch.counts.note(self.operations.grew_at(sample.pid))
        behind = self.operations.behind(sample.pid)
        return sample._replace(activity=watch.activity(now, self.uses(sample.pid), behind))

    def settle(self) -> None:
        """After the samples of a frame: forget workers that are gone, and have the others looked at closely."""
        for worker in self._watches.keys() - self._present:
            self._forget(worker)
        self._seen_first = {worker: first for worker, first in self._seen_first.items() if worker in self._present}
        self._images.keep({pid for pid, _ in self._seen_first.values()})
        self._host.workers = frozenset(watch.pid for watch in self._watches.values())
        self._host.leaders = frozenset(self.leaders())
        self._host.is_one = len(self._present) == 1
        self._present, now = set(), self._clock()
        if not self._is_primed and self._seen_first and self._aside.is_free:
            # On a host with thousands of processes the first look at them all would make the first verdict late.
            self._is_primed = True
            self._aside.begin(lambda lane: self._host.begin(now))
            return
        due = [w for worker, w in self._watches.items() if self._is_due(worker, w, now)]
        # NCCL is asked when none is looked at: a connection that a worker accepts for it would be a new descriptor.
        if self.operations.begin([w.pid for w in self._watches.values() if w.has_gpu and now > w.due_since], now):
            return
        is_over = any(watch.is_over(now) for watch in due)
        if not due or (now < self._not_before and not is_over) or not self._aside.is_free:
            return
        self._note_blocked()
        wanted = sorted((w for w in due if str(w.pid) not in self._blocked), key=lambda w: w.due)
        if wanted:
            is_early = now < self._often_until or any(_is_new(w, now) or w.is_over(now) for w in wanted)
            self._aside.begin(lambda lane: self._look(lane, wanted, SHARE_FIRST if is_early else SHARE))

    @property
    def standing(self) -> list[int]:
        """Processes of workers that are watched."""
        return [watch.pid for watch in self._watches.values()]

    def stood(self) -> float:
        """Seconds since the last of the watched workers moved; 0 where none is watched."""
        now = self._clock()
        return min((now - watch.last_move for watch in self._watches.values()), default=0.0)

    def is_pressing(self) -> bool:
        """Whether what is seen of a worker should be told at once: it has just stood for longer than a step."""
        now = self._clock()
        unusual = (now - w.last_move - self._usual(worker) for worker, w in self._watches.items())
        return any(_UNUSUAL <= longer <= OFTEN for longer in unusual)

    def disturb(self) -> None:
        """Workers are about to be asked for their stacks: what they do for that is no movement of their own."""
        self._disturbed_at = now = self._clock()
        if now - self._often_until > _OFTEN_AGAIN_S:  # what was seen of threads has to be seen again
            self._often_until = now + DISTURBED + OFTEN
            self._not_before = min(self._not_before, now + DISTURBED)
        for watch in self._watches.values():
            watch.disturb(now)

    def close(self) -> None:
        for worker in list(self._watches):
            self._forget(worker)
        self._aside.close()
        self.operations.close()

    # --- close looks

    def _is_due(self, worker: _Worker, watch: ActivityWatch, now: float) -> bool:
        if now - watch.last_move <= max(CLOSELY, STEPS * self._usual(worker)):
            watch.due_since = now
            return False
        return now >= watch.due

    def _usual(self, worker: _Worker) -> float:
        """Seconds of its usual step; 0 where that is not known."""
        median = self._median.get(worker, math.nan)
        return median if median == median else 0.0

    def _look(self, lane: Lane, watches: list[ActivityWatch], share: float) -> None:
        """In the other thread."""
        began, cost = self._clock(), time.thread_time()
        self._host.begin(began)
        first = [watch for watch in watches if watch.seen is None]
        goes_on = self._look_at(lane, watches, cost, share)
        if goes_on and first:
            goes_on = self._look_again(lane, first, self._clock() + _TWICE, cost, share)
        if goes_on and share == SHARE_FIRST:  # a verdict shall not wait for the look after the next frame
            now = self._clock()
            known = {watch: at for watch in watches if not math.isnan(at := watch.known_before(now))}
            if known:
                self._look_again(lane, list(known), max(known.values()) + _WAKES, cost, share)
        self._not_before = began + (time.thread_time() - cost) / share

    def _look_again(self, lane: Lane, watches: list[ActivityWatch], at: float, cost: float, share: float) -> bool:
        self._host.sleep(max(at - self._clock(), 0.0))
        self._host.begin(self._clock())
        return self._look_at(lane, watches, cost, share)

    def _look_at(self, lane: Lane, watches: list[ActivityWatch], cost: float, share: float) -> bool:
        """Whether there was time for it, and it is still wanted."""
        for watch in watches:
            lane.at = str(watch.pid)
            try:
                seen = watch.closely.look(self._clock())
            except Exception as error:  # an unexpected format from the kernel costs this look only
                self._note_failed(watch.pid, error)
                seen = Sighting(self._clock())
            if lane.is_left:
                return False
            self._gpus[watch.pid] = self._gpus.get(watch.pid, False) or seen.has_gpu
            is_early = seen.at < self._often_until or _is_new(watch, seen.at)
            watch.due = seen.at + (0.0 if is_early else SELDOM)
            watch.take(seen)
            if time.thread_time() - cost > share:  # the others come first next time
                return False
        return True

    def _note_failed(self, pid: int, error: Exception) -> None:
        """Once a process: what it does is unknown until a look succeeds."""
        if pid not in self._failed:
            self._failed.add(pid)
            log.warning("activity.failed", worker_pid=pid, error=f"{type(error).__name__}: {error}")

    def _note_blocked(self) -> None:
        new = set(self._aside.left) - self._blocked
        for pid in new:
            log.warning("activity.blocked", worker_pid=pid)
        self._blocked |= new

    def _forget(self, worker: _Worker) -> None:
        watch = self._watches.pop(worker)
        watch.close()
        self.operations.forget(watch.pid)
        if len(self._gpus) > 1024:
            self._gpus.clear()
        if len(self._failed) > 1024:
            self._failed.clear()

    def _last_move(self, sample: t.WorkerSample, now: float) -> float:
        ages = [age for age in (sample.still_age, sample.progress_age) if age == age]
        first = self._seen_first.get(worker := (sample.job, sample.rank))
        if first is None or first[0] != sample.pid:
            first = self._seen_first[worker] = (sample.pid, now)
        return now - min(ages) if ages else first[1]


def _is_new(watch: ActivityWatch, now: float) -> bool:
    """Whether it is looked at often."""
    return now - watch.due_since <= OFTEN or watch.looks < FIRST_LOOKS


def mark_of(path: str) -> str:
    """The worker's mark in the environment of what it starts, from the name of its probe file."""
    job, _, rest = os.path.basename(path).rpartition("-g")
    generation, _, rank = rest.partition("-rank")
    return f"{job}/{generation}/{rank}" if job and generation.isdigit() and rank.isdigit() else ""
