"""What a person sees of a step: at a terminal one table that stays where it is, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.trainer.report.meters import percent

if TYPE_CHECKING:
    from rich.table import Table

_BETWEEN_S = 0.2
"""Drawing takes about 2 ms, and a person cannot read faster."""


class Console:
    """Shows steps on `out`. A context manager."""

    def __init__(self, out: TextIO, every: int, steps: int) -> None:
        """A line for each `every`-th of so many steps, 0: none; at a terminal, where it is a table, for each."""
        self.out, self.every, self.steps = out, every, steps
        self._live: Any = None
        self._drawn = 0.0
        self._last: Mapping[str, Any] | None = None

    def __enter__(self) -> Console:
        if self.every and self.out.isatty():
            from rich.console import Console as Screen  # here: only a terminal needs it
            from rich.live import Live

            self._live = Live(console=Screen(file=self.out), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            if self._last is not None:
                self._live.update(table(self._last, self.steps), refresh=True)
            self._live.stop()

    def step(self, line: Mapping[str, Any]) -> None:
        """`line` is what Reporter writes of a step; its loss is a number."""
        if self._live is not None:
            self._last = line
            if (now := time.monotonic()) - self._drawn >= _BETWEEN_S:
                self._drawn = now
                self._live.update(table(line, self.steps), refresh=True)
        elif self.every and line["step"] % self.every == 0:
            self._say(
                f"step {line['step']} loss {line['loss']:.6f} tokens/s {line['tokens_per_s']:.0f} "
                f"seconds {line['seconds']:.3f} mfu {percent(line['mfu'])}{_moved(line)}"
            )

    def skipped(self, step: int, loss: float, ranks: list[int]) -> None:
        """A step that was not applied; `ranks` are those where it began."""
        where = f", first seen on rank {', '.join(map(str, ranks))}" if ranks else ""
        self._say(f"step {step} skipped: loss {loss} or a gradient is not finite{where}")

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)  # above the table
        else:
            print(text, file=self.out, flush=True)


def table(line: Mapping[str, Any], steps: int) -> Table:
    """One row of figures and one of where the time went."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    figures = {
        "step": f"{line['step'] + 1} of {steps}",
        "loss": f"{line['loss']:.4f}",
        "tokens/s": f"{line['tokens_per_s']:,.0f}",
        "seconds": f"{line['seconds']:.3f}",
        "MFU": percent(line["mfu"]),
        **{part: percent(seconds / line["seconds"]) for part, seconds in line["parts_s"].items()},
        "memory": f"{line['memory_bytes'] / 2**30:.2f} GiB",
        **({"moved": _moved(line).removeprefix(" moved ")} if "chunks_bytes" in line else {}),
    }
    for name in figures:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_row(*figures.values())
    return shown


def _moved(line: Mapping[str, Any]) -> str:
    """Bytes of chunks in and out of the device, where there are chunks."""
    moved = line.get("chunks_bytes")
    return "" if moved is None else f" moved {(moved['fetched'] + moved['evicted']) / 1e6:.1f} MB"
