"""Spans on their way up: what a worker recorded arrives whole, what does not fit is dropped by age and counted."""

import itertools
from collections.abc import Iterable
from typing import cast

from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.stream.span_sender import BACKLOG, SpanSender
from holdfast.base.errors import Unavailable
from holdfast.wire import messages as msg
from holdfast.wire import span_rows


class Worker:
    """The part of a probe reader that the sender needs."""

    def __init__(self, rank: int) -> None:
        self.job, self.rank, self.generation, self.lost_spans = "j1", rank, 1, 0
        self.steps: list[int] = []
        self.is_gone = False

    def new_rows(self) -> bytes:
        if self.is_gone:
            raise Unavailable("gone")
        rows = b"".join(span_rows.ROW.pack(i, 1, 2, 3, s, 0, 1, 0, 0, 0, -1, -1) for i, s in enumerate(self.steps))
        self.steps = []
        return rows

    def names(self) -> list[str]:
        return ["", "forward"]


def sender(workers: Iterable[Worker], budget: int = 1 << 20) -> tuple[SpanSender, list[msg.Spans], list[int]]:
    sent: list[msg.Spans] = []
    dropped: list[int] = []
    readers = cast(Iterable[ProbeReader], workers)
    one = SpanSender(lambda: readers, sent.append, dropped.append, budget)
    one.clock.answered(0, 1000, 20)
    return one, sent, dropped


def test_all_workers_go_in_one_message_with_the_clock() -> None:
    workers = [Worker(0), Worker(5)]
    one, sent, _ = sender(workers)
    workers[0].steps, workers[1].steps = [3, 3, 4], [4]
    workers[1].lost_spans = 9
    one.read()
    one.flush(0, 20)
    (message,) = sent
    assert (message.offset_ns, message.error_ns, message.dropped) == (990, 10, 0)
    assert [(w.rank, w.count, w.lost, w.first, w.last) for w in message.workers] == [(0, 3, 0, 3, 4), (5, 1, 9, 4, 4)]
    rows = span_rows.unpack(message.workers[0].data, 3)
    assert [row[4] for row in span_rows.ROW.iter_unpack(rows)] == [3, 3, 4]
    one.read()
    one.flush(0, 20)
    assert len(sent) == 1, "nothing new, nothing said, and what was lost is reported once"


def test_nothing_goes_while_the_stream_is_busy_or_the_clock_unknown() -> None:
    worker = Worker(0)
    one, sent, _ = sender([worker])
    worker.steps = [1]
    one.read()
    one.flush(BACKLOG + 1, 20)
    one.clock.forget()
    one.flush(0, 20)
    assert sent == []
    one.clock.answered(0, 1000, 20)
    one.flush(0, 20)
    assert len(sent) == 1


def test_beyond_the_budget_the_oldest_go_and_it_is_said_once() -> None:
    worker = Worker(0)
    one, sent, dropped = sender([worker], budget=100)
    for step in range(20):
        worker.steps = [step]
        one.read()
    assert dropped == [1]
    one.flush(0, 20)
    steps = [w.first for w in sent[0].workers]
    assert steps == list(range(20 - len(steps), 20))
    assert one.dropped == sent[0].dropped == 20 - len(steps)
    for step in range(20):
        worker.steps = [step]
        one.read()
    assert dropped == [1, 1], "a new episode is reported again"


def test_a_worker_that_is_gone_costs_the_others_nothing() -> None:
    workers = [Worker(0), Worker(1)]
    workers[0].is_gone = True
    workers[1].steps = [1]
    one, sent, _ = sender(workers)
    one.read()
    one.flush(0, 20)
    assert [w.rank for w in itertools.chain.from_iterable(m.workers for m in sent)] == [1]
