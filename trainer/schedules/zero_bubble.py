"""No bubble but the first and last steps': backward is halved, and weight gradients fill gaps (Qi et al. 2023).

The lists are torch's own. torch is imported when one is built, so that the table of schedules needs none.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.plan.plan import Order, from_csv


def zbv(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Two stages a rank, placed as a V; one list of forwards and halves of backwards a rank."""
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

    return _lists(ScheduleZBVZeroBubble, ranks, chunks, micro_batches)


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Rank r holds stages r, r + ranks, ...; one list of forwards and halves of backwards a rank."""
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    return _lists(ScheduleInterleavedZeroBubble, ranks, chunks, micro_batches)


def stages_without_ranks(ranks: int, chunks: int) -> list[Any]:
    """As much of rank 0's stages as torch's schedules need to make their lists: no group, no module."""
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


def _lists(kind: Any, ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    lists = kind(stages_without_ranks(ranks, chunks), micro_batches).pipeline_order
    text = "\n".join(",".join("" if a is None else str(a) for a in lists[rank]) for rank in range(ranks))
    return list(from_csv(text))
