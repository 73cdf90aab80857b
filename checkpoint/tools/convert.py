"""A checkpoint of one process: what `checkpoint import` writes, from tensors made elsewhere. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.commit.save import Saved, SavingWorkers, save
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.arrays import Buffer, HeldShard
from holdfast.checkpoint.format.tiles import Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.restore.inspect import Progress
from holdfast.checkpoint.stores.store import Content, Store
from holdfast.checkpoint.stores.throttle import Throttled

_KEEP_ALL = 1 << 30


class _Single:
    rank, size = 0, 1

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload]

    def broadcast(self, payload: bytes) -> bytes:
        return payload


class _Watched(Throttled):
    """A store that reports how many bytes are on their way."""

    def __init__(self, store: Store, total: int, progress: Progress) -> None:
        super().__init__(store, 0)
        self._total, self._progress = total, progress
        self._done: dict[str, int] = {}

    def create(self, path: str, content: Content) -> None:
        self.inner.create(path, lambda: self._reported(path, content))

    def _reported(self, path: str, content: Content) -> Iterator[Buffer]:
        self._done[path] = 0  # it may begin again
        for piece in content():
            yield piece
            self._done[path] += len(piece)
            self._progress(min(sum(self._done.values()), self._total), self._total)


def write_whole(
    store: Store,
    step: int,
    whole: Mapping[str, HeldShard],
    state: Mapping[str, Any],
    values: Mapping[str, Any],
    progress: Progress | None = None,
) -> Saved:
    """Commit whole tensors as the checkpoint after `step` steps. Raises CheckpointError, OSError.

    Takes the store over from the run that writes to it; removes nothing.
    """
    if progress is not None:
        store = _Watched(store, sum(held.tensor.num_bytes for held in whole.values()), progress)
    tensors = {name: held.tensor for name, held in whole.items()}
    layout = Layout(tensors, [{name: [held.shard] for name, held in whole.items()}])
    job = SavingWorkers({}, state, tensors, write_shares(layout), Retention(_KEEP_ALL))
    fence = claim(store, "", 0)
    saved = save(store, _Single(), fence, job, step, {name: [held] for name, held in whole.items()}, values)
    if not saved.ok:
        raise CheckpointError(f"{store.url}: {saved.reason}")
    return saved
