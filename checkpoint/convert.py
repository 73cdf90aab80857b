"""A checkpoint of one process: what `checkpoint import` writes, from tensors made elsewhere. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.arrays import Held
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.fence import claim
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.save import Job, Saved, save
from holdfast.checkpoint.store import Store
from holdfast.checkpoint.tiles import Layout
from holdfast.checkpoint.transfer import write_shares

_KEEP_ALL = 1 << 30


class _Single:
    rank, size = 0, 1

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload]

    def broadcast(self, payload: bytes) -> bytes:
        return payload


def write_whole(
    store: Store, step: int, whole: Mapping[str, Held], state: Mapping[str, Any], values: Mapping[str, Any]
) -> Saved:
    """Commit whole tensors as the checkpoint after `step` steps. Raises CheckpointError, OSError.

    Takes the store over from whoever writes to it; removes nothing.
    """
    tensors = {name: held.tensor for name, held in whole.items()}
    layout = Layout(tensors, [{name: [held.box] for name, held in whole.items()}])
    job = Job({}, state, tensors, write_shares(layout), Retention(_KEEP_ALL))
    fence = claim(store, "", 0)
    saved = save(store, _Single(), fence, job, step, {name: [held] for name, held in whole.items()}, values)
    if not saved.ok:
        raise CheckpointError(f"{store.url}: {saved.reason}")
    return saved
