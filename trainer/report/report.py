"""What one rank says of each step: on the console, a line in a JSON file, points for TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from holdfast.trainer.report.console import Console
from holdfast.trainer.report.meters import Meter
from holdfast.trainer.settings.config import TrainConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.telemetry.totals import Totals

_LONGEST = 1 << 16
"""No line of ours is longer; in bytes."""


class Reporter:
    """Open while training. A rank that does not report has none."""

    def __init__(self, config: TrainConfig, meter: Meter, tokens: int) -> None:
        """`tokens` are those of a step over all ranks. Raises ConfigError for a place that cannot be written."""
        self.config, self.meter, self.tokens = config, meter, tokens
        self._file: TextIO | None = None
        self._board: Any = None
        self._console = Console(sys.stdout, config.log_every, config.steps)
        if config.metrics_path:
            try:
                _end_last_line(Path(config.metrics_path))
                self._file = open(config.metrics_path, "a", encoding="utf-8")  # noqa: SIM115  # closed in __exit__
            except OSError as error:
                raise ConfigError(
                    f"train.metrics_path {config.metrics_path}: {error.strerror}; name a file that can be written",
                    is_local=True,
                ) from None
        if config.tensorboard_dir:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ConfigError(
                    "train.tensorboard_dir needs TensorBoard: pip install tensorboard, or leave it empty",
                    is_local=True,
                ) from None
            self._board = SummaryWriter(config.tensorboard_dir)

    def __enter__(self) -> Reporter:
        self._console.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._console.__exit__(kind, error, trace)
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def step(
        self,
        step: int,
        totals: Totals,
        seconds: float,
        parts: dict[str, float],
        moved: Mapping[str, int] | None = None,
    ) -> None:
        """One step is done. `parts` is where this rank's `seconds` went, what is missing went elsewhere; `moved`: bytes
        of chunks that this rank has moved, and those of its device, where model data is in chunks."""
        line: dict[str, Any] = {
            "step": step,
            "loss": totals.loss if totals.is_finite else None,
            "grad_norm": totals.norm if totals.is_finite else None,
            "skipped": not totals.is_finite,
            "tokens_per_s": self.tokens / seconds,
            "seconds": seconds,
            "time": time.time(),
            **self.meter.utilisation(seconds),
            "model_flops": self.meter.flops.model,
            "parts_s": {name: round(value, 6) for name, value in parts.items()},
            "memory_bytes": self.meter.memory_bytes(),
            **({} if moved is None else {"chunks_bytes": dict(moved)}),
        }
        if totals.is_finite:
            self._console.step(line)
        else:
            self._console.skipped(step, totals.loss, totals.bad_ranks)
        if self._file is not None:
            print(json.dumps(line), file=self._file, flush=True)
        if self._board is not None:
            for name, value in {**line, **{f"part_{k}_s": v for k, v in parts.items()}}.items():
                if isinstance(value, float) and name != "time":
                    self._board.add_scalar(name, value, step)


def _end_last_line(path: Path) -> None:
    """What a rank that was killed has left of a line goes, lest the next one is written on at it. OSError."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LONGEST))
        rest = file.read().rpartition(b"\n")[2]
        if rest.startswith(b'{"step": ') and not _is_whole(rest):
            file.truncate(size - len(rest))
        elif rest:  # only its end is missing, or another process wrote it
            file.write(b"\n")


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
