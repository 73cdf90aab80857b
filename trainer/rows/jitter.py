"""Ranks in order, and steps that nothing interrupts. Needs torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from holdfast.trainer.rows import layouts
from holdfast.trainer.rows.row import Row

STEPS = 12
GARBAGE = 2000
"""Objects of a step that only a collection frees: more than Python lets be before it begins one."""


def order_and_jitter() -> Iterator[Row]:
    """tp next to each other; and garbage is collected between steps, on all ranks the same (MegaScale, 3.1 and 6.3)."""
    yield from layouts.rank_order()
    for every in (1, 5):
        inside, between = _collections(every)
        yield Row(f"collections inside {STEPS} steps, gc_every {every}", 0, inside)
        yield Row(f"collections between {STEPS} steps, gc_every {every}", STEPS // every, between)


def _collections(every: int) -> tuple[int, int]:
    from holdfast.trainer.telemetry.garbage import gc_disabled

    counts, where = {"inside": 0, "between": 0, "": 0}, ""

    def noted(phase: str, info: object) -> None:
        counts[where] += phase == "start"

    gc.callbacks.append(noted)
    try:
        with gc_disabled(every) as collect:
            for step in range(STEPS):
                where = "inside"
                for _ in range(GARBAGE):
                    ring: list[object] = []
                    ring.append(ring)
                where = "between"
                collect(step + 1)
            where = ""
    finally:
        gc.callbacks.remove(noted)
        gc.unfreeze()  # whoever looks through all objects after this must find them
    return counts["inside"], counts["between"]
