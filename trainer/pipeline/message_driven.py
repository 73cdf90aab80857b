"""Does a rank's computations of a plan in whatever order they become ready (AxoNN, Singh and Bhatele, IPDPS 2022).

A forward is ready when its input is there, in the first stage when fewer micro-batches than the limit are under way; a
backward when its gradient is there. A backward goes first: it frees activations, here and behind it.

Only the choice between the next forward and the next backward is free. Forwards come in the order of micro-batches, and
so do backwards, on every rank: the messages of a direction keep one order, and gradients add up in one order, whatever
arrives when. So losses are those of 1F1B, bit for bit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import RECEIVES, Action, Op, Plan
from holdfast.trainer.pipeline.executor import Executor, LossFunction
from holdfast.trainer.pipeline.messages import Receive
from holdfast.trainer.pipeline.stage import Stage
from holdfast.trainer.telemetry import spans

Turn = tuple[Action, list[Callable[[], object]]]
"""A computation, and what its rank does for it and directly behind it."""


class MessageDrivenExecutor(Executor):
    """One rank's part of a plan, on one stage. The order of its list counts for what is no computation only."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        stages: Sequence[Stage],
        loss: LossFunction,
        group: dist.ProcessGroup,
        like: Tensor | Mapping[int, Tensor],
        limit: int,
        back: dist.ProcessGroup | None = None,
    ) -> None:
        """As an `Executor`. `limit`: micro-batches under way at most, counted in the first stage."""
        super().__init__(plan, rank, stages, loss, group, like, back)
        (self._stage,) = self._stages.values()
        self.limit = limit
        self._before: list[Callable[[], object]] = []
        self._turns: dict[Op, list[Turn]] = {Op.FORWARD: [], Op.BACKWARD: []}
        self._receives: dict[Op, list[tuple[Action, Callable[[], Receive]]]] = defaultdict(list)
        self._sort()
        self._news: queue.SimpleQueue[Receive | BaseException] = queue.SimpleQueue()
        self._watches = {op: _Watch(self._news) for op in self._receives}
        self._here: set[tuple[Op, int]] = set()

    def _sort(self) -> None:
        """Share the list out: receives, the two kinds of turns, and what comes before the first of them."""
        turns: dict[tuple[Op, int], list[Callable[[], object]]] = {}
        last: list[Callable[[], object]] = self._before
        for action, do in self._todo:
            if action.op in RECEIVES:
                self._receives[action.op].append((action, do))  # type: ignore[arg-type]  # it is `Messages.post`
            elif action.op in self._turns:
                last = turns[action.op, action.micro_batch] = [do]
                self._turns[action.op].append((action, last))
            elif action.op in _BEHIND:
                turns[_BEHIND[action.op], action.micro_batch].append(do)
            else:
                last.append(do)

    def _run(self) -> None:
        for do in self._before:
            do()
        self._here.clear()
        posts = {op: deque(wanted) for op, wanted in self._receives.items()}
        for op in posts:
            for _ in range(min(self.limit, len(posts[op]))):
                self._post(op, posts[op])
        left = {op: deque(turns) for op, turns in self._turns.items()}
        while left[Op.FORWARD] or left[Op.BACKWARD]:
            self._take()
            chosen = self._choose(left)
            if chosen is None:
                self._wait()
                continue
            _, todo = left[chosen].popleft()
            if (received := _RECEIVE[chosen]) in posts:
                self._post(received, posts[received])
            for do in todo:
                do()
                if self.after is not None:
                    self.after()

    def _choose(self, left: dict[Op, deque[Turn]]) -> Op | None:
        """Of which kind the next turn is; None when nothing is ready."""
        under_way = len(left[Op.BACKWARD]) - len(left[Op.FORWARD])
        if left[Op.BACKWARD] and under_way:
            micro_batch = left[Op.BACKWARD][0][0].micro_batch
            if self._stage.is_last or (Op.RECV_BACKWARD, micro_batch) in self._here:
                return Op.BACKWARD
        if left[Op.FORWARD]:
            micro_batch = left[Op.FORWARD][0][0].micro_batch
            if (Op.RECV_FORWARD, micro_batch) in self._here or (self._stage.is_first and under_way < self.limit):
                return Op.FORWARD
        return None

    def _post(self, op: Op, wanted: deque[tuple[Action, Callable[[], Receive]]]) -> None:
        """Post the next receive of a direction, if there is one."""
        if wanted:
            _, post = wanted.popleft()
            self._watches[op].watch(post())

    def _take(self) -> None:
        """All that has arrived meanwhile: nobody waited for it."""
        while not self._news.empty():
            self._note(self._news.get(), time.monotonic_ns())

    def _wait(self) -> None:
        """Nothing is ready: until the next message is here."""
        with spans.operation("pp:recv"):
            started = time.monotonic_ns()
            found = self._news.get()
        self._note(found, started)

    def _note(self, found: Receive | BaseException, since_ns: int) -> None:
        if isinstance(found, BaseException):
            raise found
        action = found.action
        self._here.add((action.op, action.micro_batch))
        if not found.works:
            size = sum(room.nbytes for room in found.rooms.values())
            spans.waited(action.op, action.stage, action.micro_batch, since_ns, size)


class _Watch:
    """Waits for the receives of one direction, in order, in a thread of its own: no transport wakes who waits for
    the first of several."""

    def __init__(self, arrived: queue.SimpleQueue[Receive | BaseException]) -> None:
        self._posted: queue.SimpleQueue[Receive] = queue.SimpleQueue()
        self._arrived = arrived
        threading.Thread(target=self._run, name="pp:recv", daemon=True).start()

    def watch(self, receive: Receive) -> None:
        self._posted.put(receive)

    def _run(self) -> None:
        while True:
            receive = self._posted.get()
            try:
                receive.arrive()
            except BaseException as error:  # the thread that trains raises it
                self._arrived.put(error)
                return
            self._arrived.put(receive)


_BEHIND = {Op.SEND_FORWARD: Op.FORWARD, Op.SEND_BACKWARD: Op.BACKWARD}
"""Behind which computation of the same micro-batch a message goes out."""
_RECEIVE = {Op.FORWARD: Op.RECV_FORWARD, Op.BACKWARD: Op.RECV_BACKWARD}
