"""Python's garbage collector, kept out of the step.

Left alone it runs when it likes, on one rank after the other, and all the others wait each time. Here every rank
collects between the same two steps.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

from holdfast.agent import probe


@contextlib.contextmanager
def gc_disabled(every: int) -> Iterator[Callable[[int], None]]:
    """Collect only when called: what is yielded takes the number of steps done. `every` 0 leaves Python its ways."""
    if not every or not gc.isenabled():
        yield lambda done: None
        return

    def collect(done: int) -> None:
        if done % every == 0:
            with probe.span("gc"):
                gc.collect()

    gc.collect()
    gc.freeze()  # what is there now stays for the whole run: collections need not look at it
    gc.disable()
    try:
        yield collect
    finally:
        gc.enable()
