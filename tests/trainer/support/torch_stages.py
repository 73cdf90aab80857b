"""As much of rank 0's stages as torch's schedules need to make their lists: no group, no module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def stages_without_ranks(ranks: int, chunks: int) -> list[Any]:
    return [
        SimpleNamespace(
            stage_index=chunk * ranks,
            num_stages=ranks * chunks,
            group_size=ranks,
            group_rank=0,
            submod=None,
            is_first=chunk == 0,
            is_last=False,
        )
        for chunk in range(chunks)
    ]
