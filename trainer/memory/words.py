"""Expected and measured memory as lines of text and as rows for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.trainer.memory.expected import KINDS, Expected, Kinds


def size(num_bytes: float) -> str:
    """In decimal units, as vendors give a GPU's memory."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def groups(expected: Expected) -> list[tuple[list[int], Kinds]]:
    """Pipeline ranks that hold equally much, and how much."""
    found: dict[Kinds, list[int]] = {}
    for rank, kinds in enumerate(expected.ranks):
        found.setdefault(kinds, []).append(rank)
    return [(ranks, kinds) for kinds, ranks in found.items()]


def ranks_of(expected: Expected, pipeline_ranks: Sequence[int]) -> str:
    """The job's ranks in these pipeline ranks, as 0-15,32-47."""
    step = expected.layout.dp * expected.layout.tp
    runs: list[list[int]] = []
    for rank in pipeline_ranks:
        if runs and runs[-1][1] == rank * step:
            runs[-1][1] += step
        else:
            runs.append([rank * step, (rank + 1) * step])
    return ",".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in runs)


def table(expected: Expected) -> list[str]:
    """A heading and a line for each group of ranks, the fullest marked."""
    rows = [["ranks", *KINDS, "total"]]
    for ranks, kinds in groups(expected):
        mark = " <- most" if expected.most in ranks else ""
        cells = [size(value) for value in asdict(kinds).values()]
        rows.append([ranks_of(expected, ranks), *cells, size(kinds.total) + mark])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(c.rjust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]


def beside(rank: int, expected: Mapping[str, int], measured: Mapping[str, int], allocated: int | None) -> str:
    """One line: what was expected of a pipeline rank, and what was measured."""
    kinds = [
        f"{kind} {size(expected[kind])}, {size(found)}" for kind, found in measured.items() if expected[kind] or found
    ]
    whole = "" if allocated is None else f"; in all {size(sum(expected.values()))}, {size(allocated)} allocated"
    return f"memory of pipeline rank {rank} (expected, measured): {'; '.join(kinds)}{whole}"


def document(expected: Expected) -> dict[str, Any]:
    """For programs: bytes by pipeline rank."""
    return {
        "pp": expected.layout.pp,
        "dp": expected.layout.dp,
        "tp": expected.layout.tp,
        "parameters": expected.parameters,
        "most": expected.most,
        "needs_bytes": expected.needs,
        "ranks": [{**asdict(kinds), "total": kinds.total} for kinds in expected.ranks],
        "host_bytes": list(expected.host),
    }
