"""State that is no tensor, where it is too long for a snapshot's record: in a file beside the arena, for each slot one.

The record names it by its checksum, so that one that was torn, or is another snapshot's, counts for nothing. No torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from holdfast.base import private
from holdfast.checkpoint.errors import SnapshotRefused

LONGEST = 48 << 20
"""Bytes: it goes to the peer in one message."""


def put(arena: Path, slot: int, text: bytes) -> int:
    """Write values, as JSON; their checksum. Raises SnapshotRefused, with figures."""
    size = f"{len(text) / 1e6:.1f} MB of state that is no tensor"
    if len(text) > LONGEST:
        raise SnapshotRefused(
            f"{size}: at most {LONGEST / 1e6:.1f} MB fit beside a snapshot; keep long lists in tensors or arrays"
        )
    try:
        with open(_file(arena, slot), "wb", opener=private.opener) as file:
            file.write(text)
    except OSError as error:
        raise SnapshotRefused(f"no room for {size} in {arena.parent}: {error.strerror}") from None
    return xxhash.xxh3_64_intdigest(text)


def get(arena: Path, slot: int, digest: int) -> dict[str, Any] | None:
    """Undo `put`; None when the file is not the one that was written."""
    try:
        text = _file(arena, slot).read_bytes()
    except OSError:
        return None
    return dict(json.loads(text)) if xxhash.xxh3_64_intdigest(text) == digest else None


def remove(arena: Path) -> None:
    """Remove an arena, and what lies beside it. Idempotent."""
    arena.unlink(missing_ok=True)
    for aside in arena.parent.glob(f"{arena.name}.values*"):
        aside.unlink(missing_ok=True)


def _file(arena: Path, slot: int) -> Path:
    return arena.with_name(f"{arena.name}.values{slot}")
