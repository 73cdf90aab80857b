"""Tables behind a cache, as `holdfast train-embeddings` has them, against counts of the data. Needs torch.

Server, cacher and trainers are the real ones, in threads of this process, with sockets between them.
"""

from __future__ import annotations

import itertools
import socket
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.trainer.embeddings.cacher import Cacher
from holdfast.trainer.embeddings.criteo import Sample, batches, write_zipf
from holdfast.trainer.embeddings.model import Dlrm, descend, gradients
from holdfast.trainer.embeddings.ranks import Ranks
from holdfast.trainer.embeddings.servers.keys import as_keys, first_values
from holdfast.trainer.embeddings.servers.link import Message, ask
from holdfast.trainer.embeddings.servers.server import Server, accept_all
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.trainer import Trainer
from holdfast.trainer.rows.row import Row

TRAINERS, BATCH, STEPS, DIM, VALUES = 2, 8, 40, 4, 300
WINDOWS = (1, 4, 20)
ITEM = 8
"""Bytes of a float64."""
SECRET = b"of threads of one process"
WAIT_S = 60.0


def real() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks"
        write_zipf(path, BATCH * STEPS, VALUES, seed=4)
        run = Run("rows", [str(path)], STEPS, BATCH, 0, TRAINERS, DIM, "float64", 1, 0.5)
        data = list(itertools.islice(batches([path], BATCH), STEPS))
        plain = _plain(data, run)
        for window in WINDOWS:
            yield from _rows(data, plain, replace(run, lookahead=window))


def _rows(data: Sequence[Sequence[Sample]], plain: dict[int, np.ndarray], run: Run) -> Iterator[Row]:
    needs = [{key for sample in batch for key in sample.keys} for batch in data]
    uses: dict[int, list[int]] = defaultdict(list)
    for number, keys in enumerate(needs):
        for key in keys:
            uses[key].append(number)
    gaps = sum(b - a >= run.lookahead for at in uses.values() for a, b in itertools.pairwise(at))
    fetches = len(uses) + gaps
    # With one batch in the queue no row stays for the next one, so none is waited for.
    now = sum(len(a & b) for a, b in itertools.pairwise(needs)) if run.lookahead > 1 else 0
    figures, tables, now_bytes = _trained(run)
    of = f"by the trainers, window {run.lookahead}"
    yield Row(f"rows fetched {of}", fetches, figures["fetches"])
    yield Row(f"bytes from the server, rows x {DIM} x {ITEM}, {of}", fetches * DIM * ITEM, figures["fetched_bytes"])
    # What was fetched is evicted once.
    yield Row(f"bytes written back, evictions x {DIM} x {ITEM}, {of}", fetches * DIM * ITEM, figures["written_bytes"])
    for rank, found in enumerate(now_bytes):
        yield Row(f"bytes of gradients before the next batch, trainer {rank}, {of}", now * DIM * ITEM, found)
    apart = max(abs(tables[key] - row).max() for key, row in plain.items()) if tables.keys() == plain.keys() else np.nan
    yield Row(f"largest difference of the tables after {STEPS} steps, {of}", 0.0, float(apart), 1e-12)


def _plain(data: Sequence[Sequence[Sample]], run: Run) -> dict[int, np.ndarray]:
    """Tables after synchronous SGD in one place, without servers, caches and shares."""
    table: dict[int, np.ndarray] = {}
    model = Dlrm(DIM, torch.float64, run.seed)
    for batch in data:
        used = sorted({key for sample in batch for key in sample.keys})
        for key in used:
            if key not in table:
                table[key] = first_values(as_keys([key]), DIM, run.seed, np.dtype(np.float64))[0]
        flat, found = gradients(
            model,
            torch.tensor([sample.numbers for sample in batch], dtype=torch.float64),
            torch.tensor([sample.label for sample in batch], dtype=torch.float64),
            torch.from_numpy(np.stack([table[key] for key in used])),
            torch.tensor([[used.index(key) for key in sample.keys] for sample in batch]),
            len(batch),
        )
        for key, gradient in zip(used, found.numpy(), strict=True):
            table[key] = table[key] - run.lr * gradient
        descend(model, flat, run.lr)
    return table


def _trained(run: Run) -> tuple[dict[str, int], dict[int, np.ndarray], list[int]]:
    """The server's figures, its tables, and each trainer's bytes on the critical path."""
    with ExitStack() as stack:
        server = stack.enter_context(_listening(Server().serve))
        run = replace(run, servers=[server], cacher=stack.enter_context(_listening(Cacher(run).serve)))
        head = {"do": "open", "run": run.name, "spec": asdict(run.spec), "number": 0, "servers": 1}
        ask(server, SECRET, {**head, "store": "", "step": 0})
        exchanges = [_Exchange(run.trainers) for _ in range(3)]
        # One after the other: first parameters are drawn from torch's generator, of which a process has one.
        trainers = [
            Trainer(run, rank, SECRET, [_InThreads(rank, exchange) for exchange in exchanges])
            for rank in range(run.trainers)
        ]

        def body(trainer: Trainer) -> int:
            for number in range(run.steps):
                trainer.step(number)
            trainer.end()
            return trainer.now_bytes

        with ThreadPoolExecutor(run.trainers) as pool:
            now_bytes = list(pool.map(body, trainers))
        figures = ask(server, SECRET, {"do": "figures", "run": run.name}).head
        _, keys, rows = ask(server, SECRET, {"do": "dump", "run": run.name})
    return figures, dict(zip(keys.tolist(), rows, strict=True)), now_bytes


@contextmanager
def _listening(serve: Callable[[Message], Any]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def accept() -> None:
            with suppress(OSError):  # the socket is closed at the end
                accept_all(sock, SECRET, serve)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{sock.getsockname()[1]}"
        sock.shutdown(socket.SHUT_RDWR)


class _Exchange:
    """What a process group is for processes."""

    def __init__(self, size: int) -> None:
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.meet = threading.Barrier(size, timeout=WAIT_S)


class _InThreads(Ranks):
    def __init__(self, rank: int, exchange: _Exchange) -> None:
        super().__init__(rank, len(exchange.parts), None)
        self._exchange = exchange

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        self._exchange.parts[self.rank] = part
        self._exchange.meet.wait()
        parts = list(self._exchange.parts)
        self._exchange.meet.wait()  # nobody puts the next part before all have these
        return parts
