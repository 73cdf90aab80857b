"""One rank's memory by kind, as measured. Run in children of the fork server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from joining import joined

from holdfast.trainer.memory.measured import STEPS, Gauge

LATE_S = 120.0
"""So late is no sum."""


def held(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Bytes of each kind that this rank held, and its pipeline rank."""
    with joined(argv) as rank:
        trainer = rank.trainer()
        with Gauge(trainer.executor, trainer.stages, trainer.optimizer, rank.mesh.device) as gauge:
            look = trainer.executor.after
            assert look is not None

            def settled() -> None:
                """A sum that is late is in no tensor: how many of them a look misses depends on the other ranks."""
                for thread in threading.enumerate():
                    if thread.name == "reduction":
                        thread.join(LATE_S)
                look()

            trainer.executor.after = settled
            for step in range(STEPS):
                trainer.step(step)
            return {"measured": gauge.result().kinds(), "pp_rank": rank.mesh.pp_rank}
