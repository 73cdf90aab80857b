"""One rank's memory by kind, as measured. Run in children of the fork server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joining import joined

from holdfast.trainer.memory.measured import STEPS, Gauge


def held(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Bytes of each kind that this rank held, and its pipeline rank."""
    with joined(argv) as rank:
        trainer = rank.trainer()
        with Gauge(trainer.executor, trainer.stages, trainer.optimizer, rank.mesh.device) as gauge:
            for step in range(STEPS):
                trainer.step(step)
            return {"measured": gauge.result().kinds(), "pp_rank": rank.mesh.pp_rank}
