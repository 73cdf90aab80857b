"""Progress of a command that takes a while: on standard error, only at a terminal, not in the first second."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.cli.common import output

QUIET_S = 1.0
"""Shorter work shows nothing."""
_EVERY_S = 0.1

Progress = Callable[[int, int], None]
"""How much is done of how much; a total of 0 is unknown."""


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A bar while the block runs; without any report it only shows that the work goes on."""
    console = output.err()
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    bars = Bars(*columns, console=console, transient=True)
    task = bars.add_task(what, total=None, amount="")
    timer = threading.Timer(QUIET_S, bars.start)
    timer.daemon = True
    shown = 0.0

    def report(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < _EVERY_S and not 0 < total <= done:
            return
        shown = now
        amount = f"{done / total:.0%}" if total else f"{done:,}"
        bars.update(task, completed=done, total=total or None, amount=amount)

    timer.start()
    try:
        yield report
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bars just now
        bars.stop()
