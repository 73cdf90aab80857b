"""`holdfast plan --stages alpa`: layers and tp of each stage by Alpa's planners, beside even ones on the same ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import UsageError
from holdfast.cli.common import bounds, output
from holdfast.cli.common.extras import needs
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:  # torch takes time to import
    from holdfast.planner.cluster.cluster import Cluster
    from holdfast.trainer.graphs.cuts import Cut
    from holdfast.trainer.graphs.own import ModuleCut
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


def plan_stages(config: Config, cluster: Cluster, limit: str, seconds: float, as_json: bool) -> str:
    """Print what was found. Returns the settings of the fastest as TOML."""
    with needs("trainer,planner"):
        from holdfast.trainer.graphs.cuts import find
        from holdfast.trainer.graphs.machines import machines_of
        from holdfast.trainer.graphs.own import find_own
        from holdfast.trainer.modules.look import look
        from holdfast.trainer.settings.written import written

    machines = machines_of(cluster, float(bounds.size_of("--limit", limit) or 0))
    config = replace(config, parallel=replace(config.parallel, stage_layers=(), stage_tp=()))
    began = time.monotonic()
    with progress("cutting the model into stages"):
        cuts: Sequence[Cut | ModuleCut]
        if config.module.build:
            look(config, 1)  # in a process of its own, since it runs the user's code
            cuts, refused = find_own(config, machines)
        else:
            found = find(config, machines, time_limit_s=seconds)
            cuts, refused = found.cuts, found.refused
    took = time.monotonic() - began
    if as_json:
        output.print_json({"cuts": [_document(one) for one in cuts], "refused": refused, "seconds": took})
    else:
        _print(cuts, sum(refused.values()), took)
    return written(cuts[0].config)


def _document(one: Cut | ModuleCut) -> dict[str, Any]:
    return {
        "settings": one.settings,
        "parts": list(one.parts),
        "stage_tp": list(one.layout.tps),
        "dp": one.layout.dp,
        "stage_s": list(one.stage_seconds),
        "step_s": one.simulated_seconds,
        "formula_s": one.seconds,
        "even_step_s": one.even_seconds if isfinite(one.even_seconds) else None,
    }


def _print(cuts: Sequence[Cut | ModuleCut], left: int, seconds: float) -> None:
    is_own = bool(cuts[0].config.module.build)
    split = "BALANCE" if is_own else "SPLIT"
    table = output.table("OPERATIONS" if is_own else "LAYERS", "TP", ">DP", ">ZERO", split, ">STEP S", ">EVEN S", "WHY")
    for one in cuts:
        parallel = one.config.parallel
        names = [name for name in ("sequence", "shard_vocabulary") if getattr(parallel, name)]
        even = f"{one.even_seconds:.3g}" if isfinite(one.even_seconds) else "no room"
        table.add_row(
            _numbers(one.parts),
            _numbers(one.layout.tps),
            str(one.layout.dp),
            str(parallel.zero),
            one.config.module.balance if is_own else ", ".join(names) or "-",
            f"{one.simulated_seconds:.3g}",
            even,
            why(one),
        )
    output.out().print(table)
    output.say(f"{len(cuts)} of the fastest; {left:,} strategies and plans left out; {seconds:.1f} s")


def why(one: Cut | ModuleCut) -> str:
    """What its stages are good for, beside even ones on the same ranks."""
    even = "equal parts of the parameters" if one.config.module.build else "even layers"
    if not isfinite(one.even_seconds):
        return f"{even} do not fit"
    less = 1 - one.simulated_seconds / one.even_seconds
    if abs(less) < 0.0005:
        return f"as {even}"
    slowest = max(one.stage_seconds) / (sum(one.stage_seconds) / len(one.stage_seconds)) - 1
    return f"{-less:+.1%} against {even}; the slowest stage is {slowest:.0%} above the mean"


def _numbers(values: Sequence[int]) -> str:
    """Of many stages the runs of equal ones: 12x8, 4."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return "+".join(f"{count}x{value}" if count > 2 else "+".join([str(value)] * count) for count, value in runs)
