"""Measures the first steps of a run, and reports what was found beside what was expected. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from holdfast.trainer.memory.expected import Expected
from holdfast.trainer.memory.measured import STEPS, Gauge
from holdfast.trainer.memory.words import beside
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.settings.errors import ConfigError


class MemoryReport:
    """Of a rank. All ranks have one, or none."""

    def __init__(self, path: str, expected: Expected, gauge: Gauge, mesh: RankMesh) -> None:
        self._path, self._expected, self._gauge, self._mesh = path, expected, gauge, mesh
        self._left = STEPS
        gauge.__enter__()

    def after_step(self) -> None:
        """A step is done. Behind the last one that is measured all ranks meet, and rank 0 reports."""
        self._left -= 1
        if self._left == 0:
            self._finish()

    def close(self) -> None:
        """The run is over, or has failed: nothing is measured any more."""
        if self._left > 0:
            if self._mesh.device_mesh.get_rank() == 0:
                print(f"train.memory_path: fewer than {STEPS} steps were done, so nothing was measured", flush=True)
            self._left = 0
            self._gauge.__exit__(None, None, None)

    def _finish(self) -> None:
        self._gauge.__exit__(None, None, None)
        mesh = self._mesh
        own = {"pp": mesh.pp_rank, **asdict(self._gauge.result())}
        found: list[Any] = [own] * mesh.layout.world
        if mesh.layout.world > 1:
            dist.all_gather_object(found, own)
        if mesh.device_mesh.get_rank() == 0:
            self._report(found)

    def _report(self, found: list[dict[str, Any]]) -> None:
        rows = []
        for rank, kinds in enumerate(self._expected.ranks):
            # The fullest of its replicas, kind by kind: dp may not divide every parameter.
            those = [{k: v for k, v in one.items() if k != "pp"} for one in found if one["pp"] == rank]
            measured = {k: max(one[k] for one in those) for k in those[0] if k != "allocated"}
            allocated = max((one["allocated"] for one in those if one["allocated"] is not None), default=None)
            rows.append({"pp": rank, "expected": asdict(kinds), "measured": measured, "allocated": allocated})
            print(beside(rank, asdict(kinds), measured, allocated), flush=True)
        with _refused(self._path):
            Path(self._path).write_text(json.dumps({"steps": STEPS, "ranks": rows}) + "\n")


def check_path(path: str) -> None:
    """ConfigError unless the report can be written there. Leaves what is there as it is."""
    with _refused(path), open(path, "a"):
        pass


@contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"train.memory_path {path}: {error.strerror}; name a file that can be written"
        raise ConfigError(text, is_local=True) from None
