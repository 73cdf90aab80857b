"""A picture that is drawn again and again, on the whole of a terminal; into a file, only where it changed."""

import time
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from holdfast.cli.common import output

SHARE = 0.1
"""Part of the time that drawing may take: large clusters are drawn less often."""

Picture = Callable[[Console, int | None], RenderableType]
"""Gets the console and the lines that it has; None: any number."""


def keep_showing(picture: Picture, period_s: float) -> NoReturn:
    """Until Ctrl-C."""
    console = output.out()
    if not console.is_terminal:
        _print_changes(console, picture, period_s)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            began = time.monotonic()
            live.update(picture(console, console.height), refresh=True)
            time.sleep(pause(time.monotonic() - began, period_s))


def _print_changes(console: Console, picture: Picture, period_s: float) -> NoReturn:
    before = ""
    while True:
        with console.capture() as taken:
            console.print(picture(console, None))
        if taken.get() != before:
            before = taken.get()
            console.file.write(before + "\n")
            console.file.flush()
        time.sleep(period_s)


def pause(took_s: float, period_s: float) -> float:
    """Seconds until the next picture."""
    return max(period_s - took_s, took_s * (1 / SHARE - 1))
