"""Heat maps in a terminal: slow cells have a colour, and without colours a figure."""

from collections.abc import Sequence

from holdfast.base.plain import plain
from holdfast.cli.common import output

_SHADES = ((1.3, "#", "bold white on red"), (1.1, "*", "red"), (1.05, "+", "yellow"), (1.02, "-", "default"))
"""From which ratio on, as one character, in which style."""
_EVEN = (".", "dim")
_UNKNOWN = (" ", "dim")
_RANKS = 64
_STEPS = 96


def show(found: output.Json) -> None:
    """Both maps of `blame_report.heat_report`: all ranks of a small job, the slowest of a large one."""
    console = output.out()
    console.print(
        f"steps {found['first']} to {found['last']} of {output.text(found['name'] or found['job'])}: milliseconds a "
        "step, and how much longer than the peers'"
    )
    table = output.table("RANK", "NODE", *(f">{output.text(phase.upper())}" for phase in found["phases"]))
    for i in _hottest(found["ratio"], _RANKS):
        cells = (_cell(s, r) for s, r in zip(found["seconds"][i], found["ratio"][i], strict=True))
        table.add_row(str(found["ranks"][i]), output.text(found["node_of"][i]), *cells)
    console.print(table)
    marks = ", ".join(f"{mark} from {(ratio - 1) * 100:.0f}%" for ratio, mark, _ in reversed(_SHADES))
    console.print(f"each node's slowest rank over its peers, step by step ({marks}; {_EVEN[0]} below):")
    names = [plain(name) or "-" for name in found["nodes"]]
    wide = max(map(len, names), default=0)
    for i in _hottest(found["by_step"], _RANKS):
        strip = "".join(_mark(ratio) for ratio in found["by_step"][i][-_STEPS:])
        console.print(f"{output.text(names[i].ljust(wide))}  {strip}", soft_wrap=True)


def _hottest(rows: Sequence[Sequence[float | None]], most: int) -> list[int]:
    """The rows to show, in order."""
    by_heat = sorted(range(len(rows)), key=lambda i: -max((x for x in rows[i] if x is not None), default=0.0))
    return sorted(by_heat[:most])


def _shade(ratio: float | None) -> tuple[str, str]:
    if ratio is None:
        return _UNKNOWN
    return next(((mark, style) for least, mark, style in _SHADES if ratio >= least), _EVEN)


def _cell(seconds: float | None, ratio: float | None) -> str:
    if seconds is None:
        return "-"
    more = f" +{(ratio - 1) * 100:.0f}%" if ratio is not None and ratio >= _SHADES[-1][0] else ""
    style = _shade(ratio)[1] if more else "default"
    return f"[{style}]{seconds * 1e3:,.1f}{more}[/]"


def _mark(ratio: float | None) -> str:
    mark, style = _shade(ratio)
    return f"[{style}]{mark}[/]"
