"""Standing workers' threads and operations to columns and back. Used by `wire` only."""

from collections.abc import Sequence

from holdfast.base.errors import ProtocolError
from holdfast.proto import types_pb2 as p
from holdfast.wire import types as t
from holdfast.wire.standing import OpenOperation, Standing, ThreadSight, ThreadState

_STATES = {state.value: state for state in ThreadState}


def standing_message(workers: Sequence[t.WorkerSample]) -> p.Standing:
    known = [(i, w.standing) for i, w in enumerate(workers) if w.standing is not None]
    threads = [one for _, s in known for one in s.threads]
    operations = [one for _, s in known for one in s.operations]
    return p.Standing(
        worker=[i for i, _ in known],
        is_complete=[s.is_complete for _, s in known],
        holder=[s.holder for _, s in known],
        threads=[len(s.threads) for _, s in known],
        operations=[len(s.operations) for _, s in known],
        tid=[x.tid for x in threads],
        state=[x.state.value for x in threads],
        seconds=[x.seconds for x in threads],
        ends_in=[x.ends_in for x in threads],
        words=[x.words for x in threads],
        count=[x.count for x in threads],
        thread=[o.thread for o in operations],
        kind=[o.kind for o in operations],
        group=[o.group for o in operations],
        number=[o.number for o in operations],
        size=[o.size for o in operations],
        root=[o.root for o in operations],
        is_timed=[o.is_timed for o in operations],
    )


def standing_from(m: p.Standing, pending: Sequence[t.PendingCollective | None]) -> list[Standing | None]:
    """`pending`: of all workers, whose groups the operations refer to. Raises ProtocolError for what does not fit."""
    if any(len(column) != len(m.worker) for column in (m.is_complete, m.holder, m.threads, m.operations)):
        raise ProtocolError("frame: columns of standing workers differ in length")
    thread_columns = (m.tid, m.state, m.seconds, m.ends_in, m.words, m.count)
    operation_columns = (m.thread, m.kind, m.group, m.number, m.size, m.root, m.is_timed)
    if any(len(column) != sum(m.threads) for column in thread_columns):
        raise ProtocolError("frame: columns of threads differ in length")
    if any(len(column) != sum(m.operations) for column in operation_columns):
        raise ProtocolError("frame: columns of open operations differ in length")
    threads = [
        ThreadSight(tid, _STATES.get(state, ThreadState.UNKNOWN), *rest)
        for tid, state, *rest in zip(*thread_columns, strict=True)
    ]
    operations = [OpenOperation(*row) for row in zip(*operation_columns, strict=True)]
    found: list[Standing | None] = [None] * len(pending)
    at = begun = 0
    columns = (m.worker, m.is_complete, m.holder, m.threads, m.operations)
    for worker, is_complete, holder, many, open_ones in zip(*columns, strict=True):
        if worker >= len(pending):
            raise ProtocolError("frame: threads of a worker that it lacks")
        own = operations[begun : begun + open_ones]
        groups = len(known.groups) if (known := pending[worker]) is not None else 0
        if any(one.group >= groups for one in own):
            raise ProtocolError("frame: an open operation of a group that its worker lacks")
        found[worker] = Standing(tuple(threads[at : at + many]), tuple(own), is_complete, holder)
        at, begun = at + many, begun + open_ones
    return found
