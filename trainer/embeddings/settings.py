"""What a run of `holdfast train-embeddings` is: one file of JSON, which all its processes read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.trainer.embeddings.servers.tables import Spec


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    """A random one; servers and trainers of other runs are refused by it."""
    data: list[str]
    """Files, in their order."""
    steps: int
    """In all, those before a restore among them."""
    batch: int
    """Samples, over all trainers."""
    lookahead: int
    """Batches in the queue, the one that is trained among them. 1: no row outlives its batch, as without a cache.
    0: as many as `cache_rows` allows."""
    trainers: int
    dim: int
    dtype: str
    seed: int
    lr: float
    cache_rows: int = 0
    """The most rows in a trainer's cache and on their way to it; 0: no limit."""
    first: int = 0
    """Steps done by the snapshot from which the run begins; 0: it begins anew."""
    store: str = ""
    snapshot_every: int = 0
    keep: int = 3
    """Newest snapshots that stay."""
    servers: list[str] = field(default_factory=list)
    """Addresses, in the order of the servers' numbers."""
    tables: str = ""
    """URL of the Redis that has the servers' rows; empty: their own memory."""
    tables_name: str = ""
    """Under which the rows are there."""
    cacher: str = ""
    optimizer: str = "sgd"
    """Of the rows; the parameters that are no tables have SGD. One of `OPTIMIZERS` of `servers.tables`."""

    @property
    def spec(self) -> Spec:
        return Spec(self.trainers, self.dim, self.dtype, self.seed, self.first, self.optimizer)

    @property
    def fixed(self) -> dict[str, Any]:
        """What a snapshot cannot go on with otherwise, by option."""
        return {
            "dim": self.dim,
            "dtype": self.dtype,
            "seed": self.seed,
            "batch": self.batch,
            "optimizer": self.optimizer,
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Run:
        return Run(**json.loads(path.read_text()))
