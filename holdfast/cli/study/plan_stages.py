"""`holdfast plan --stages alpa`: layers and tp of each stage by Alpa's planners, beside the same ranks with even layers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import UsageError
from holdfast.base.files import read_text
from holdfast.cli.common import bounds, output
from holdfast.cli.common.extras import needs
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:  # torch takes time to import
    from holdfast.trainer.graphs.cuts import Cut, Found
    from holdfast.trainer.settings.config import Config

STAGES = ("even", "alpa")
_SCHEDULE = "1f1b"


def check(stages: str, others: Mapping[str, bool]) -> None:
    """UsageError for another word, or for options that go with even stages alone. `others`: by name, if given."""
    if stages not in STAGES:
        raise UsageError(f"--stages is {stages[:40]!r}: write even or alpa")
    given = [name for name, is_given in others.items() if is_given]
    if stages == "alpa" and given:
        raise UsageError(f"--stages alpa plans {_SCHEDULE} by time on all devices: leave out {', '.join(given)}")


def plan_stages(config: Config, cluster: Path, limit: str, seconds: float, as_json: bool) -> str:
    """Print what was found. Returns the settings of the fastest as TOML."""
    with needs("trainer,planner"):
        from holdfast.trainer.graphs.cuts import find
        from holdfast.trainer.graphs.machines import machines_of
        from holdfast.trainer.settings.written import written
    from holdfast.planner.cluster.file import parse

    machines = machines_of(parse(read_text(cluster), str(cluster)), float(bounds.size_of("--limit", limit) or 0))
    parallel = replace(config.parallel, stage_layers=(), stage_tp=())
    began = time.monotonic()
    with progress("cutting the model into stages"):
        found = find(replace(config, parallel=parallel), machines, time_limit_s=seconds)
    took = time.monotonic() - began
    if as_json:
        output.print_json({
            "cuts": [_document(one) for one in found.cuts], "refused": dict(found.refused), "seconds": took,
        })  # fmt: skip
    else:
        _print(found, took)
    return written(found.cuts[0].config)


def _document(one: Cut) -> dict[str, Any]:
    return {
        "settings": one.settings,
        "stage_layers": list(one.layout.stage_layers),
        "stage_tp": list(one.layout.tps),
        "dp": one.layout.dp,
        "stage_s": list(one.stage_seconds),
        "step_s": one.simulated_seconds,
        "formula_s": one.seconds,
        "even_step_s": one.even_seconds if isfinite(one.even_seconds) else None,
    }


def _print(found: Found, seconds: float) -> None:
    table = output.table("LAYERS", "TP", ">DP", ">ZERO", "SPLIT", ">STEP S", ">EVEN S", "WHY")
    for one in found.cuts:
        parallel = one.config.parallel
        split = [name for name in ("sequence", "shard_vocabulary") if getattr(parallel, name)]
        even = f"{one.even_seconds:.3g}" if isfinite(one.even_seconds) else "no room"
        table.add_row(
            _numbers(one.layout.stage_layers),
            _numbers(one.layout.tps),
            str(one.layout.dp),
            str(parallel.zero),
            ", ".join(split) or "-",
            f"{one.simulated_seconds:.3g}",
            even,
            why(one),
        )
    output.out().print(table)
    left = sum(found.refused.values())
    output.say(f"{len(found.cuts)} of the fastest; {left:,} strategies and plans left out; {seconds:.1f} s")


def why(one: Cut) -> str:
    """What its layers are good for, beside even ones on the same ranks."""
    if not isfinite(one.even_seconds):
        return "even layers do not fit"
    less = 1 - one.simulated_seconds / one.even_seconds
    if abs(less) < 0.0005:
        return "as even layers"
    slowest = max(one.stage_seconds) / (sum(one.stage_seconds) / len(one.stage_seconds)) - 1
    return f"{-less:+.1%} against even layers; the slowest stage is {slowest:.0%} above the mean"


def _numbers(values: Sequence[int]) -> str:
    """Of many stages the runs of equal ones: 12x8, 4."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return "+".join(f"{count}x{value}" if count > 2 else "+".join([str(value)] * count) for count, value in runs)
