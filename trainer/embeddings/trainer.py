"""One trainer, whose process `trainer_process` starts.

Rank 0 prints a line of JSON for each step, and one at the end. Results depend on the number of trainers in the last
bits alone, and on nothing else of how the work is shared out: every sum has one order.
"""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash

from holdfast.base.errors import HoldfastError
from holdfast.trainer.determinism import fix_products
from holdfast.trainer.embeddings.batch import Batch
from holdfast.trainer.embeddings.cache import RowCache, spread
from holdfast.trainer.embeddings.model import Dlrm, descend, gradients
from holdfast.trainer.embeddings.ranks import Ranks
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.servers.keys import Keys, as_keys, dtype_of
from holdfast.trainer.embeddings.servers.link import ask
from holdfast.trainer.embeddings.servers.server import secret_of
from holdfast.trainer.embeddings.servers.stream import REPLY_S, Stream
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.stage import Stage
from holdfast.trainer.embeddings.update import update
from holdfast.trainer.embeddings.write_back import After, WriteBack


class Trainer:
    def __init__(self, run: Run, rank: int, secret: bytes, ranks: Sequence[Ranks] = ()) -> None:
        """`ranks`: three ways to the other trainers, each for one thread; without them, process groups are made."""
        self._run, self._secret = run, secret
        self._dense, late, arriving = ranks or [
            Ranks(rank, run.trainers, dist.new_group() if run.trainers > 1 else None) for _ in range(3)
        ]
        self._dtype = torch.from_numpy(np.empty(0, dtype_of(run.dtype))).dtype
        self.model = Dlrm(run.dim, self._dtype, run.seed)
        if run.first:
            content = snapshots.read_file(run.store, run.first, snapshots.MODEL)
            self.model.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
        plans, rows, back = Stream(run.cacher, secret, "the cacher"), self._streams(), self._streams()
        self._open = [plans, *rows, *back]
        self._stage = Stage(run, arriving, plans, rows)
        self._back = WriteBack(run, late, back)
        self._cache = RowCache(run.spec.width, self._dtype, self._back.wait_idle, run.cache_rows)
        self._back.start(self._cache)
        self._storing: threading.Thread | None = None
        self._not_stored = ""
        """Why, in a line."""
        self.now_bytes = self.later_bytes = 0
        """Gradients of rows that this trainer gave to the others, before the next batch and beside it."""

    @property
    def peak_rows(self) -> int:
        return self._cache.peak

    def step(self, number: int) -> float:
        """Train one batch; its mean loss."""
        staged = self._stage.next()
        batch = staged.batch
        # Rows that this batch needs and the one before the last left to do.
        self._cache.release(self._back.wait_applied(number - 2))
        self._cache.insert(staged.keys, staged.rows)
        used, places = np.unique(batch.keys, return_inverse=True)
        flat, found = gradients(
            self.model,
            torch.from_numpy(batch.numbers).to(self._dtype),
            torch.from_numpy(batch.labels).to(self._dtype),
            self._cache.rows[self._cache.places(used)][:, : self._run.dim],
            torch.from_numpy(places.reshape(batch.keys.shape)),
            batch.size,
        )
        self._sync_now(batch, used, found)
        flat = self._dense.sum(flat)
        descend(self.model, flat, self._run.lr)
        self._begin_rest(batch, used, found)
        if batch.flush and self._run.store:
            self._store(number + 1)
        return float(flat[-1])

    def end(self) -> None:
        """Wait for everything that goes on beside the last batch."""
        self._back.end()
        self._wait_stored()
        for stream in self._open:
            stream.close()

    def _sync_now(self, batch: Batch, used: Keys, found: torch.Tensor) -> None:
        now = spread(used, found, batch.sync_now)
        self.now_bytes += now.nbytes if self._run.trainers > 1 else 0
        update(self._cache.rows, self._cache.places(batch.sync_now), self._dense.sum(now), self._run.lr)

    def _begin_rest(self, batch: Batch, used: Keys, found: torch.Tensor) -> None:
        """Hand over what may be done beside the next batch."""
        later = spread(used, found, batch.sync_later)
        self.later_bytes += later.nbytes if self._run.trainers > 1 else 0
        alone = self._cache.places(batch.alone)
        back = [batch.alone, batch.evict]
        places = self._cache.places(batch.sync_later), alone
        leaving = [self._cache.places(keys) for keys in back]
        freed = self._cache.drop(batch.leaving)
        if batch.flush:
            held = self._cache.keys
            back.append(as_keys(held[self._dense.rank :: self._run.trainers]))
            leaving.append(self._cache.places(back[-1]))
        self._back.begin(
            After(
                batch.number,
                places[0],
                later,
                places[1],
                spread(used, found, batch.alone),
                torch.cat(leaving),
                np.concatenate(back),
                batch.flush,
                freed,
            )
        )
        if batch.flush:  # the next batch would change rows that are being copied
            self._cache.release(self._back.wait_applied(batch.number))

    def _store(self, step: int) -> None:
        """Rank 0 copies its parameters, and makes the snapshot exist when all servers have written their shares."""
        if self._dense.rank:
            return
        self._wait_stored()
        content = io.BytesIO()
        torch.save(self.model.state_dict(), content)
        self._storing = threading.Thread(target=self._commit, args=(step, content.getvalue()), daemon=True)
        self._storing.start()

    def _commit(self, step: int, model: bytes) -> None:
        run = self._run
        try:
            files = snapshots.write_file(run.store, step, run.name, snapshots.MODEL, model)
            for server in run.servers:
                files |= ask(server, self._secret, {"do": "stored", "run": run.name, "step": step}, REPLY_S).head[
                    "files"
                ]
            snapshots.commit(run.store, step, run.name, run.fixed, files)
        except (OSError, HoldfastError) as error:
            self._not_stored = f"the snapshot of step {step} is not stored: {error}"
            return
        try:
            snapshots.prune(run.store, run.keep, run.name)
        except OSError as error:
            # What is stored is good: too many snapshots end no run.
            print(
                f"holdfast: snapshots before the newest {run.keep} are not removed: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _wait_stored(self) -> None:
        if self._storing is not None:
            self._storing.join(REPLY_S)
            if self._storing.is_alive():
                raise HoldfastError(f"a snapshot was not stored within {REPLY_S:g} s")
        if self._not_stored:
            raise HoldfastError(self._not_stored)

    def _streams(self) -> list[Stream]:
        return [
            Stream(address, self._secret, f"embedding server {number}")
            for number, address in enumerate(self._run.servers)
        ]


def digest(model: Dlrm) -> int:
    """A hash of all parameters."""
    return xxhash.xxh3_64_intdigest(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))


def main() -> int:
    """Train all steps. HoldfastError when a server, the cacher or another trainer is gone."""
    fix_products()
    run, rank = Run.read(Path(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)  # sums over several threads have no fixed order, and trainers share the processors
    if run.trainers > 1:
        meeting = f"file://{Path(sys.argv[1]).with_name('ranks').absolute()}"
        dist.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=run.trainers, timeout=timedelta(seconds=REPLY_S)
        )
    try:
        trainer = Trainer(run, rank, secret_of(None))
        for number in range(run.first, run.steps):
            loss = trainer.step(number)
            _print(rank, {"step": number + 1, "loss": loss})
        trainer.end()
    except RuntimeError as error:
        raise HoldfastError(f"trainer {rank} lost another one: {str(error).splitlines()[0][:200]}") from None
    _print(
        rank,
        {
            "sync_now_bytes": trainer.now_bytes,
            "sync_later_bytes": trainer.later_bytes,
            "peak_rows": trainer.peak_rows,
            "model": f"{digest(trainer.model):016x}",
        },
    )
    return 0


def _print(rank: int, line: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(line), flush=True)
