"""`holdfast plan`: the best layouts of a job on a cluster, before anything runs."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import UsageError
from holdfast.base.files import read_text
from holdfast.cli.common import bounds, output
from holdfast.cli.common.extras import needs, require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:  # numpy and torch take time to import
    from holdfast.planner.network.questions import Reply
    from holdfast.planner.search.ranked import Ranked
    from holdfast.planner.search.search import Found, Search
    from holdfast.trainer.settings.config import Config

_GOALS = ("time", "memory")
_MOST_SECONDS = 24 * 3600.0
_MOST_NODES = 1 << 17
_INSTEAD = ("--sample", "--export-hf", "--traffic")


def plan(
    context: typer.Context,
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FILE", help="The cluster, as TOML: docs/planning.md has an example.")
    ],
    goal: Annotated[str, typer.Option(metavar="time|memory", help="What is to be least: time or memory.")] = "time",
    limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a device for tensors. Default: all that the GPU has.")
    ] = "",
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measured times, as `holdfast profile` writes them.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Search so long at most; then the best so far is printed.")
    ] = 60.0,
    idle_nodes: Annotated[
        int, typer.Option(metavar="N", help="So many nodes may be left without ranks, where others divide better.")
    ] = 0,
    schedules: Annotated[str, typer.Option(metavar="LIST", help="Only these schedules, as 1f1b,interleaved.")] = "",
    host: Annotated[bool, typer.Option("--host", help="Optimizer states may lie in host memory.")] = False,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the best as settings for `train`.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help="What a change costs, as leaf:3, order:dp-tp-pp or flap:8s; repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find the layouts with which a step of a job takes the least time, or memory, on a cluster.

    Takes the settings of `holdfast train` (--config FILE, --model NAME, --set) for the model and for the samples of a
    step, train.micro_batches x train.micro_batch_size. Axes, schedules, ZeRO stages, micro-batches and recomputes are
    compared by their predictions; nothing runs.
    """
    require("trainer,planner", "torch", "numpy")
    if goal not in _GOALS:
        raise UsageError(f"--goal is {goal[:40]!r}: write time or memory")
    if not 0 < seconds <= _MOST_SECONDS:
        raise UsageError(f"--seconds is {seconds:g}: must be above 0, {_MOST_SECONDS:g} at most")
    if not 0 <= idle_nodes <= _MOST_NODES:
        raise UsageError(f"--idle-nodes is {idle_nodes}: must be from 0 to {_MOST_NODES}")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--output is {out}: the folder {out.parent} does not exist")
    if out is not None and out.is_dir():
        raise UsageError(f"--output is {out}, a folder: name a file in it")
    if any(word.partition("=")[0] in _INSTEAD for word in context.args):
        raise UsageError("holdfast plan takes settings only: leave out --sample, --export-hf and --traffic")
    with needs("trainer,planner"):
        from holdfast.trainer.__main__ import parse_all
    config, instead = parse_all(context.args)
    assert instead is None
    refuse_what_is_not_planned(config)
    search = _search(config, cluster, goal, limit, profile, idle_nodes, schedules, host)
    if what_if:
        _check(what_if, search)
    began = time.monotonic()
    with progress("looking at layouts"):
        found = search.run(lambda: time.monotonic() - began > seconds)
    replies = _asked(what_if, found.best[0], search) if what_if else []
    text = _settings(config, found.best[0])
    if out is not None:
        try:
            out.write_text(text)
        except OSError as error:
            raise UsageError(f"--output is {out}, which cannot be written: {error.strerror}") from None
    if as_json:
        document = _document(found, time.monotonic() - began)
        output.print_json({**document, "what_if": [one.document() for one in replies]})
        return 0
    _print(found, time.monotonic() - began)
    if replies:
        _print_replies(replies)
    if out is not None:
        output.say(f"settings written to {out}, for holdfast train --config {out}")
    return 0


def refuse_what_is_not_planned(config: Config) -> None:
    """Settings that predictions know nothing of."""
    if config.module.build:
        raise UsageError(f"module.build = {config.module.build}: layouts are planned for the trainer's own model")
    if config.parallel.stage_layers:
        raise UsageError("parallel.stage_layers is set, and layers are spread evenly over stages here: leave it out")
    for name, value, usual in (
        ("memory.policy", config.memory.policy, "whole"),
        ("train.activations", config.train.activations, "device"),
    ):
        if value != usual:
            raise UsageError(
                f"{name} = {value} is in no prediction: leave it at {usual}, and try it on the layout found"
            )


def _search(
    config: Config, cluster: Path, goal: str, limit: str, profile: Path | None, idle: int, schedules: str, host: bool
) -> Search:
    from holdfast.planner.cluster.file import parse
    from holdfast.planner.cost.measured import read
    from holdfast.planner.cost.predict import CostModel
    from holdfast.planner.search.search import Search
    from holdfast.planner.search.space import Space
    from holdfast.trainer.settings.layout import vocab_of
    from holdfast.trainer.settings.planned import precision_of, takes
    from holdfast.trainer.settings.shape import shape_of

    vocab = vocab_of(config.data.tokenizer)
    known = parse(read_text(cluster), str(cluster))
    measured = None if profile is None else read(read_text(profile), str(profile))
    costs = CostModel(known, precision_of(config), measured)
    names = tuple(word.strip() for word in schedules.split(",")) if schedules else Space().schedules
    space = Space(schedules=names, host=(False, True) if host else (False,), idle_nodes=idle)
    if measured is not None:  # as it was measured
        sequence = any("sequence" in key for key in measured.parts)
        space = replace(
            space, sequence=sequence, shard_vocabulary=False, micro_batch_sizes=(measured.micro_batch_size,)
        )
    samples = config.train.micro_batches * config.train.micro_batch_size
    return Search(
        shape_of(config.model, vocab, config.data.seq_len),
        costs,
        samples,
        "memory" if goal == "memory" else "time",
        space,
        float(bounds.size_of("--limit", limit) or 0),
        allows=lambda layout: takes(config, layout, vocab),
    )


def _check(questions: list[str], search: Search) -> None:
    """A question that can't be answered is refused before the search."""
    from holdfast.planner.network.network import Network
    from holdfast.planner.network.of_cluster import clos_of
    from holdfast.planner.network.questions import ask
    from holdfast.planner.network.traffic import StepTraffic

    for question in questions:
        ask(question, StepTraffic(1, 1, 1, 0.0, 0.0), Network(clos_of(search.costs.cluster)))


def _asked(questions: list[str], best: Ranked, search: Search) -> list[Reply]:
    """What the network does to the best layout's transfers, as it is and with each change."""
    from holdfast.planner.network.network import Network
    from holdfast.planner.network.of_cluster import clos_of
    from holdfast.planner.network.questions import ask, now
    from holdfast.planner.network.traffic import StepTraffic

    layout, wire = best.layout, best.prediction.wire.by_purpose
    traffic = StepTraffic(
        layout.pp,
        layout.dp,
        layout.tp,
        wire["replicas"] / layout.world,
        wire["pipeline"] / (2 * max(1, layout.pp - 1) * layout.dp * layout.tp),
    )
    network = Network(clos_of(search.costs.cluster))
    return [now(traffic, network), *(ask(question, traffic, network) for question in questions)]


def _print_replies(replies: list[Reply]) -> None:
    table = output.table("WHAT IF", ">SUMS", ">MESSAGES", ">SHARED UPLINKS", "")
    first = replies[0].answer
    assert first is not None
    for one in replies:
        if one.answer is not None:
            slower = one.answer.sums_s / first.sums_s - 1 if first.sums_s else 0.0
            text = f"sums {slower:+.0%}" if abs(slower) >= 0.005 else ""
            if one.answer.cut_off:
                text = f"{one.answer.cut_off:,} rings and messages are cut off: the job stops"
            both = one.answer.sums_s, one.answer.messages_s
            times = [f"{1e3 * value:.4g} ms" if isfinite(value) else "never" for value in both]
            table.add_row(one.question, *times, f"{one.answer.conflicts:,}", text)
        elif one.flap is not None:
            text = f"InfiniBand gives up after {one.flap.tolerance_s:.3g} s: the job fails"
            if one.flap.ends_s is not None:
                text = f"the step ends {one.flap.ends_s - one.flap.calm_s:.3g} s later"
            table.add_row(one.question, "", "", "", text)
    output.out().print(table)


def _settings(config: Config, best: Ranked) -> str:
    from holdfast.trainer.settings.planned import settings_of
    from holdfast.trainer.settings.written import written

    return written(settings_of(config, best.layout))


def _document(found: Found, seconds: float) -> dict[str, Any]:
    return {
        "layouts": [
            {
                "layout": asdict(one.layout),
                "step_s": one.prediction.step_s,
                "mfu": one.prediction.mfu,
                "breakdown_s": one.prediction.breakdown.document(),
                "memory_bytes": one.prediction.fullest.document(),
                "wire_bytes": dict(one.prediction.wire.by_purpose),
                "link_bytes": {level.word: value for level, value in one.prediction.wire.by_link.items()},
            }
            for one in found.best
        ],
        "complete": found.is_complete,
        "floor_s": found.floor_s,
        "looked_at": dict(found.counts),
        "seconds": seconds,
    }


def _print(found: Found, seconds: float) -> None:
    from holdfast.planner.search.ranked import why

    table = output.table(
        ">PP",
        ">DP",
        ">TP",
        "SCHEDULE",
        ">CHUNKS",
        ">ZERO",
        "RECOMPUTE",
        ">BATCH",
        ">STEP S",
        ">MFU %",
        ">MEMORY",
        "WHY",
    )
    for one in found.best:
        layout, prediction = one.layout, one.prediction
        table.add_row(
            str(layout.pp),
            str(layout.dp),
            str(layout.tp),
            layout.schedule,
            str(layout.stages_per_rank),
            str(layout.zero) + (" host" if layout.is_on_host else ""),
            layout.recompute,
            f"{layout.local_micro_batches}x{layout.micro_batch_size}",
            f"{prediction.step_s:.3g}",
            f"{100 * prediction.mfu:.1f}",
            output.size(int(prediction.fullest.total)),
            why(one, found.best[0]),
        )
    output.out().print(table)
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(found.counts.items()))
    if found.is_complete:
        output.say(f"no other layout is better; {counts}; {seconds:.1f} s")
    else:
        output.say(
            f"stopped after {seconds:.1f} s; {counts}; what is left takes {found.floor_s:.3g} s at least: "
            "--seconds gives more time"
        )
