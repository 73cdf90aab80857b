"""`holdfast plan`: the best layouts of a job on a cluster, before anything runs."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import UsageError
from holdfast.base.files import read_text
from holdfast.cli.common import bounds, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.extras import needs, require
from holdfast.cli.common.options import Json, with_client_only
from holdfast.cli.common.progress import progress
from holdfast.cli.study import plan_stages, plan_what_if
from holdfast.cli.study.live_cluster import LIVE, read_live

if TYPE_CHECKING:  # numpy and torch take time to import
    from holdfast.planner.cluster.cluster import Cluster
    from holdfast.planner.cost.layout import Layout
    from holdfast.planner.search.ranked import Ranked
    from holdfast.planner.search.search import Found, Search
    from holdfast.planner.unlike.explained import Unlike
    from holdfast.trainer.settings.config import Config

_GOALS = ("time", "memory")
_MOST_SECONDS = 24 * 3600.0
_MOST_NODES = 1 << 17
_MOST_GBIT = 1e6
_INSTEAD = ("--sample", "--export-hf", "--traffic")


@with_client_only
def plan(
    client: Client,
    context: typer.Context,
    cluster: Annotated[
        Path,
        typer.Option(
            "--cluster",
            metavar="FILE|live",
            help="The cluster, as TOML (docs/planning.md has an example), or live: the controller's nodes.",
        ),
    ],
    goal: Annotated[str, typer.Option(metavar="time|memory", help="What is to be least: time or memory.")] = "time",
    limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a device for tensors. Default: all that the GPU has.")
    ] = "",
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measured times, as `holdfast profile` writes them.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Search so long at most; then the best so far is printed, if one fits.")
    ] = 60.0,
    idle_nodes: Annotated[
        int, typer.Option(metavar="N", help="So many nodes may be left without ranks, where others divide better.")
    ] = 0,
    schedules: Annotated[str, typer.Option(metavar="LIST", help="Only these schedules, as 1f1b,interleaved.")] = "",
    host: Annotated[bool, typer.Option("--host", help="States, activations or chunks may lie in host memory.")] = False,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the best as settings for `train`.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE", help="Draw who sits where, and what links carry, as SVG.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help="What a change costs, as leaf:3, incast:32 or flap:8s; repeatable."),
    ] = None,
    stages: Annotated[
        str, typer.Option(metavar="even|alpa", help="Layers of stages: evenly, or as Alpa's planners find them.")
    ] = "even",
    link_gbit: Annotated[
        float, typer.Option(metavar="GBIT", help="With live: Gbit/s of one GPU between nodes, where none is reported.")
    ] = 0.0,
    save_cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With live: write the cluster as a file for --cluster.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Find the layouts with which a step of a job takes the least time, or memory, on a cluster.

    Takes the settings of `holdfast train` (--config FILE, --model NAME, --set) for the model and for the samples of a
    step, train.micro_batches x train.micro_batch_size. Axes, schedules, ZeRO stages, micro-batches and recomputes are
    compared by their predictions; nothing runs. With --stages alpa, layers and tp of each stage are cut (1F1B).
    """
    require("trainer,planner", "torch", "numpy")
    if goal not in _GOALS:
        raise UsageError(f"--goal is {goal[:40]!r}: write time or memory")
    if not 0 < seconds <= _MOST_SECONDS:
        raise UsageError(f"--seconds is {seconds:g}: must be above 0, {_MOST_SECONDS:g} at most")
    if not 0 <= idle_nodes <= _MOST_NODES:
        raise UsageError(f"--idle-nodes is {idle_nodes}: must be from 0 to {_MOST_NODES}")
    others = {"--profile": profile is not None, "--idle-nodes": idle_nodes > 0, "--schedules": schedules != "",
              "--host": host, "--goal memory": goal == "memory", "--what-if": bool(what_if),
              "--draw": draw is not None}  # fmt: skip
    plan_stages.check(stages, others)
    for option, path in (("--output", out), ("--save-cluster", save_cluster), ("--draw", draw)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{option} is {path}: the folder {path.parent} does not exist")
        if path is not None and path.is_dir():
            raise UsageError(f"{option} is {path}, a folder: name a file in it")
    if not 0 <= link_gbit <= _MOST_GBIT:
        raise UsageError(f"--link-gbit is {link_gbit:g}: must be 0 or more, {_MOST_GBIT:g} at most")
    if str(cluster) != LIVE and (link_gbit or save_cluster is not None):
        raise UsageError(f"--link-gbit and --save-cluster go with --cluster live, and it is {str(cluster)[:80]}")
    if any(word.partition("=")[0] in _INSTEAD for word in context.args):
        raise UsageError("holdfast plan takes settings only: leave out --sample, --export-hf and --traffic")
    with needs("trainer,planner"):
        from holdfast.trainer.__main__ import parse_all
    config, instead = parse_all(context.args)
    assert instead is None
    refuse_what_is_not_planned(config, stages)
    _refuse_what_is_chosen(config)
    known = _cluster(client, cluster, link_gbit, save_cluster)
    if stages == "alpa":
        _write_settings(out, plan_stages.plan_stages(config, known, limit, seconds, as_json), as_json)
        return 0
    from holdfast.planner.search.budget import Budget

    began, budget = time.monotonic(), Budget(seconds, time.monotonic)
    search = _search(config, known, goal, limit, profile, idle_nodes, schedules, host)
    if what_if:
        plan_what_if.check(what_if, search)
    with progress("looking at layouts"):
        found = search.run(budget.is_up, budget.is_too_long)
    replies = plan_what_if.asked(what_if, found.best[0], search) if what_if else []
    text = _settings(config, found.best[0], search)
    unlike = _unlike(found.best[0], search)
    if draw is not None:
        _write("--draw", draw, _picture(found.best[0], search))
    if as_json:
        document = _document(found, time.monotonic() - began)
        more = {} if unlike is None else {"nics": unlike.document()}
        output.print_json({**document, **more, "what_if": [one.document() for one in replies]})
    else:
        _print(found, time.monotonic() - began)
        for line in [] if unlike is None else unlike.lines():
            output.say(line)
        if replies:
            plan_what_if.print_replies(replies)
    if draw is not None and not as_json:
        output.say(f"picture written to {draw}")
    _write_settings(out, text, as_json)
    return 0


def _write_settings(out: Path | None, text: str, is_quiet: bool) -> None:
    """The settings that were found, where they are wanted."""
    if out is None:
        return
    _write("--output", out, text)
    if not is_quiet:
        output.say(f"settings written to {out}, for holdfast train --config {out}")


def _cluster(client: Client, place: Path, link_gbit: float, save: Path | None) -> "Cluster":
    """From the file, or from the controller; nodes by their type of NIC."""
    from holdfast.planner.cluster.file import parse
    from holdfast.planner.cluster.written import written
    from holdfast.planner.unlike.blocks import by_type

    if str(place) != LIVE:
        return by_type(parse(read_text(place), str(place)))
    found = read_live(client, link_gbit * 1e9 / 8)
    if save is not None:
        _write("--save-cluster", save, written(found))
    return by_type(found)


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{option} is {path}, which cannot be written: {error.strerror}") from None


def _picture(best: "Ranked", search: "Search") -> str:
    from holdfast.planner.cost.picture import svg

    layout, cluster = best.layout, search.costs.cluster
    title = f"pp {layout.pp}, dp {layout.dp}, tp {layout.tp}, {layout.schedule} on {cluster.world:,} {cluster.gpu.name}"
    return svg(cluster, layout, best.prediction.wire, title)


def refuse_what_is_not_planned(config: "Config", stages: str = "even") -> None:
    """Settings that predictions know nothing of."""
    if config.module.build and stages == "even":
        raise UsageError(
            f"module.build = {config.module.build}: layouts are of the trainer's own model; --stages alpa cuts yours"
        )
    if config.parallel.stage_layers:
        raise UsageError("parallel.stage_layers is set, and layers are spread evenly over stages here: leave it out")


def _refuse_what_is_chosen(config: "Config") -> None:
    for name, value, usual in (
        ("memory.policy", config.memory.policy, "whole"),
        ("train.activations", config.train.activations, "device"),
        ("optim.state", config.optim.state, "device"),
    ):
        if value != usual:
            raise UsageError(f"{name} = {value} is chosen here: leave it at {usual}, and allow it with --host")


def _search(
    config: "Config",
    known: "Cluster",
    goal: str,
    limit: str,
    profile: Path | None,
    idle: int,
    schedules: str,
    host: bool,
) -> "Search":
    from holdfast.planner.cost.layout import MEMORY
    from holdfast.planner.cost.measured import read
    from holdfast.planner.cost.predict import CostModel
    from holdfast.planner.search.search import Search
    from holdfast.planner.search.space import Space
    from holdfast.trainer.settings.layout import vocab_of
    from holdfast.trainer.settings.planned import precision_of, takes
    from holdfast.trainer.settings.shape import shape_of

    vocab = vocab_of(config.data.tokenizer)
    measured = None if profile is None else read(read_text(profile), str(profile))
    costs = CostModel(known, precision_of(config), measured)
    names = tuple(word.strip() for word in schedules.split(",")) if schedules else Space().schedules
    space = Space(schedules=names, memory=MEMORY if host else MEMORY[:1], idle_nodes=idle, bucket=config.optim.bucket)
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


def _unlike(best: "Ranked", search: "Search") -> "Unlike | None":
    """What NICs of unlike types mean for the best layout; None where all are alike."""
    from holdfast.planner.unlike.blocks import is_unlike
    from holdfast.planner.unlike.explained import explained

    return explained(search.costs, search.model, best.layout) if is_unlike(search.costs.cluster) else None


def _settings(config: "Config", best: "Ranked", search: "Search") -> str:
    """With what a step of them is planned to take, beside which the job's page shows what it takes, and where types of
    NIC meet, with a network for each group."""
    from holdfast.planner.unlike.blocks import blocks
    from holdfast.trainer.settings.planned import settings_of, with_planned
    from holdfast.trainer.settings.written import written

    step = search.costs.planned(search.model, best.layout)
    gpu = search.costs.cluster.gpu.name
    found = settings_of(config, best.layout)
    if len({one.nic for one in blocks(search.costs.cluster, best.layout.world)}) > 1:
        found = replace(found, transport=replace(found.transport, networks="by-nic"))
    return written(with_planned(found, step, gpu, best.layout.world))


def _on_host(layout: "Layout") -> str:
    """What is there, and how: with activations, how many micro-batches stay."""
    text = "" if layout.policy == "device" else layout.policy
    text += f" but {layout.activation_blocks}" if layout.activation_blocks else ""
    return f"{text} in pieces" if layout.reduce_pieces else text


def _document(found: "Found", seconds: float) -> dict[str, Any]:
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


def _print(found: "Found", seconds: float) -> None:
    from holdfast.planner.search.ranked import why

    table = output.table(
        ">PP",
        ">DP",
        ">TP",
        "SCHEDULE",
        ">CHUNKS",
        ">ZERO",
        "RECOMPUTE",
        "ON HOST",
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
            str(layout.zero),
            layout.recompute,
            _on_host(layout),
            f"{layout.local_micro_batches}x{layout.micro_batch_size}"
            + (f"/{layout.sub_batches}" * (layout.sub_batches > 1)),
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
