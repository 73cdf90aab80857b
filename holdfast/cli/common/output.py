"""Terminal output: tables, colours and short numbers. Results go to standard output, the rest to standard error."""

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.base.plain import plain

Json = dict[str, Any]

WIDTH_OF_FILES = 240
"""Into a pipe or a file, lines are not folded at the 80 columns that a terminal is taken to have: grep would miss."""

_RAW = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_STATE_STYLES = {
    "healthy": "green",
    "running": "green",
    "finished": "green",
    "closed": "green",
    "train": "green",
    "ok": "green",
    "spare": "cyan",
    "pending": "cyan",
    "starting": "cyan",
    "joining": "cyan",
    "suspect": "yellow",
    "stalled": "yellow",
    "cordoned": "yellow",
    "recovering": "yellow",
    "stopped": "yellow",
    "open": "red",
    "faulty": "red",
    "lost": "red",
    "failed": "red",
    "exited": "red",
}


def out() -> Console:
    return _console(stderr=False)


def err() -> Console:
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    return console


def print_json(data: object) -> None:
    """One JSON document on standard output."""
    text = json.dumps(data, ensure_ascii=False)
    # JSON itself escapes most control characters; of the others a terminal would make what they say.
    sys.stdout.write(_RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A message that is not part of the result."""
    with suppress(OSError):  # a closed terminal must not end the command
        print("holdfast:", plain(text), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One line of a result on standard output; control characters in names are escaped."""
    print(plain(text))


def state(word: str | None) -> str:
    style = _STATE_STYLES.get(word or "")
    return f"[{style}]{word}[/]" if style else text(word)


def text(value: object) -> str:
    """External text with its markup escaped."""
    return "-" if value is None or value == "" else escape(plain(value))


def shown(value: object) -> str:
    """External text for places that read no markup."""
    return "-" if value is None or value == "" else plain(value)


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """1.2 s, 3 min 20 s, 2 h 05 min."""
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(value: float | None) -> str:
    """Decimal units, as networks and disks use them."""
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def when(at: float | None, now: float) -> str:
    """The time of day; the date too where it is not today's."""
    if at is None:
        return "-"
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def spans(numbers: Iterable[int]) -> str:
    """0-3,8: ranks of a node in few characters."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) or "-"


def table(*columns: str) -> Table:
    """Columns that begin with ">" are numbers, set flush right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return made


def incident_line(incident: Json) -> str:
    """One incident in one line, without markup."""
    return ", ".join([f"{incident['kind']} on {incident['culprit']}", *incident_parts(incident)])


def incident_parts(incident: Json) -> list[str]:
    """What was done about it, and how long it took."""
    parts = []
    if incident.get("detect_s") is not None:
        parts.append(f"seen after {seconds(incident['detect_s'])}")
    if incident.get("recover_s") is not None:
        # A watched incident stopped no training: the agent or controller came back.
        back = "back" if incident.get("action") == "watch" else "training again"
        parts.append(f"{back} after {seconds(incident['recover_s'])}")
    if incident.get("action"):
        parts.append(str(incident["action"]))
    is_known = incident.get("recover_s") is not None or incident.get("restore_s") is not None
    if incident.get("source") and is_known:  # until then it is where the state would come from at worst
        parts.append(f"state from {incident['source']}")
    return parts
