"""One trainer in this process, with a server and a cacher in threads: what is done beside a batch may come late."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clicks import run_of, train

from holdfast.trainer.embeddings.cacher import Cacher
from holdfast.trainer.embeddings.criteo import write_zipf
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.servers.link import Message, ask
from holdfast.trainer.embeddings.servers.server import Server, accept_all
from holdfast.trainer.embeddings.servers.stream import Stream
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.stage import Stage, Staged
from holdfast.trainer.embeddings.trainer import Trainer
from holdfast.trainer.embeddings.write_back import After, WriteBack

SECRET = b"0123456789abcdef"
LATE_S = 0.05
WAIT_S = 60.0


@contextmanager
def listening(serve: Callable[[Message], Any]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def accept() -> None:
            with suppress(OSError):  # the test is over
                accept_all(sock, SECRET, serve)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{sock.getsockname()[1]}"
        sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_zipf(tmp_path / "clicks", 160, 100, seed=2)
    return run_of(tmp_path / "clicks", trainers=1, steps=10, store=str(tmp_path / "store"), snapshot_every=3)


def trained(run: Run, serve: Callable[[Message], Any]) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(listening(serve))
        run = replace(run, servers=[server], cacher=stack.enter_context(listening(Cacher(run).serve)))
        head = {"do": "open", "run": run.name, "spec": asdict(run.spec), "number": 0, "servers": 1}
        ask(server, SECRET, {**head, "store": run.store, "step": 0})
        trainer = Trainer(run, 0, SECRET)
        for number in range(run.steps):
            trainer.step(number)
        trainer.end()


@pytest.mark.parametrize("lookahead", [1, 4])
def test_rows_with_a_state_are_plain_row_wise_adagrad(run: Run, lookahead: int) -> None:
    """Also in a snapshot of the middle of the run: the state goes with its row."""
    run = replace(run, optimizer="rowwise-adagrad", lookahead=lookahead, lr=0.05)
    trained(run, Server().serve)
    for step in (3, 9):
        keys, rows = snapshots.load_share(run.store, step, run.spec, 0, 1).copy()
        found = dict(zip(keys.tolist(), rows, strict=True))
        table = train(replace(run, steps=step), 1)[0]
        assert max(abs(found[key] - row).max() for key, row in table.items()) <= 1e-12
    assert len({len(row) for row in found.values()} | {run.dim + 1}) == 1
    plain = train(replace(run, steps=9, optimizer="sgd"), 1)[0]
    assert max(abs(found[key][: run.dim] - row).max() for key, row in plain.items()) > 1e-3


def check_snapshots(run: Run) -> None:
    """Each snapshot, of the middle of the run too, is what plain training has after its steps."""
    for step in range(run.snapshot_every, run.steps + 1, run.snapshot_every):
        keys, rows = snapshots.load_share(run.store, step, run.spec, 0, 1).copy()
        table = train(replace(run, steps=step), 1)[0]
        found = {key: row for key, row in zip(keys.tolist(), rows, strict=True) if key in table}
        assert found.keys() == table.keys()
        assert all(np.array_equal(found[key], row) for key, row in table.items()), step


def test_what_is_done_beside_a_batch_may_end_as_late_as_somebody_waits_for_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are fetched at once and stay, so that no server waits for a write-back: nothing else hurries them."""
    wanted, changed = -1, threading.Condition()
    do, wait_applied, end = WriteBack._do, WriteBack.wait_applied, WriteBack.end

    def want(number: int) -> None:
        nonlocal wanted
        with changed:
            wanted = max(number, wanted)
            changed.notify_all()

    def late(self: WriteBack, work: After) -> None:
        with changed:
            assert changed.wait_for(lambda: wanted >= work.number, WAIT_S)
        do(self, work)

    def waiting(self: WriteBack, number: int) -> list[int]:
        want(number)
        return wait_applied(self, number)

    def ending(self: WriteBack) -> None:
        want(run.steps)
        end(self)

    monkeypatch.setattr(WriteBack, "_do", late)
    monkeypatch.setattr(WriteBack, "wait_applied", waiting)
    monkeypatch.setattr(WriteBack, "end", ending)
    trained(replace(run, lookahead=50), Server().serve)
    check_snapshots(run)


@pytest.mark.parametrize("lookahead", [1, 2])
def test_write_backs_may_arrive_late(run: Run, lookahead: int) -> None:
    server, waits = Server(), []

    def serve(message: Message) -> Any:
        if message.head["do"] == "write":
            time.sleep(LATE_S)
        if message.head["do"] == "fetch":
            waits.append((message.head["batch"], message.head["after"]))
        return server.serve(message)

    trained(replace(run, lookahead=lookahead), serve)
    check_snapshots(run)
    # The first batches are in the queue at once; each later one enters when the one it follows is done.
    assert waits == [(number, max(-1, number - lookahead)) for number in range(10)]


@pytest.mark.parametrize("lookahead", [2, 4])
def test_a_fetch_has_the_time_of_all_batches_between(run: Run, monkeypatch: pytest.MonkeyPatch, lookahead: int) -> None:
    """It is asked for when the batch L before it has not ended, and its reply may wait until the one before it has
    begun: a round trip is hidden behind L - 1 steps."""
    server, begun, changed = Server(), -1, threading.Condition()
    asked: dict[int, int] = {}
    take, ask_ = Stage.next, Stream.ask

    def beginning(self: Stage) -> Staged:
        nonlocal begun
        staged = take(self)
        with changed:
            begun = staged.batch.number
            changed.notify_all()
        return staged

    def asking(self: Stream, head: dict[str, Any], *arrays: Any) -> None:
        if head["do"] == "fetch":
            asked[head["batch"]] = begun
        ask_(self, head, *arrays)

    def serve(message: Message) -> Any:
        reply = server.serve(message)
        if message.head["do"] == "fetch" and (number := message.head["batch"]) >= lookahead:
            with changed:
                assert changed.wait_for(lambda: begun >= number - 1, WAIT_S)
        return reply

    monkeypatch.setattr(Stage, "next", beginning)
    monkeypatch.setattr(Stream, "ask", asking)
    trained(replace(run, lookahead=lookahead), serve)
    check_snapshots(run)
    late = [number for number in asked if number >= lookahead]
    assert late
    assert all(asked[number] <= number - lookahead for number in late)


def test_what_goes_wrong_in_a_thread_is_raised_where_the_batch_is_awaited(run: Run) -> None:
    class Broken:
        def ask(self, head: dict[str, Any]) -> None:
            raise ValueError("no plan")

    class Alone:
        rank, size = 0, 1

    stage = Stage(run, Alone(), Broken(), [])  # type: ignore[arg-type]  # neither is used before the error
    with pytest.raises(ValueError, match="no plan"):
        stage.next()
