"""`holdfast run --replan`: the best layout of an embedded trainer's job on each smaller number of nodes.

They are planned when the job is submitted, not when nodes are lost: the trainer's own checks accept each of them, the
controller needs neither the trainer nor time for it, and its decisions can be replayed from what was submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import UsageError
from holdfast.base.files import read_text
from holdfast.base.settings import parse_whole
from holdfast.cli.common.extras import needs, require
from holdfast.cli.common.output import note
from holdfast.cli.common.progress import progress
from holdfast.cli.job.launch import embedded

if TYPE_CHECKING:  # numpy takes time to import
    from holdfast.planner.cluster.cluster import Cluster
    from holdfast.planner.search.ranked import Ranked
    from holdfast.trainer.settings.config import Config

Json = dict[str, Any]

SEARCH_S = 2.0
"""Seconds for each number of nodes; then the best so far is taken."""


def plan_all(cluster: Path, args: Sequence[str], module: str, nnodes: tuple[int, int], nproc: str) -> list[Json]:
    """A layout for each smaller number of nodes that is worth a restart, as the API takes them, fewest nodes first.

    Throughputs are shares of that of the job's own layout on all nodes. Numbers of nodes on which nothing fits, or
    which are no faster than fewer, are left out, with a note. UsageError for what cannot be planned.
    """
    least, most = nnodes
    if module not in embedded.MODULES:
        raise UsageError(
            "--replan plans layouts of the embedded trainer: holdfast run --replan FILE -m holdfast.trainer ...; a "
            "script with --nnodes MIN:MAX finds its own"
        )
    if least == most:
        raise UsageError(f"--replan needs fewer nodes to plan for: write --nnodes MIN:{most}")
    slots = parse_whole(nproc)
    if slots is None:
        raise UsageError(f"--replan needs a number of workers: --nproc-per-node N instead of {nproc}")
    require("trainer,planner", "torch", "numpy")
    with needs("trainer,planner"):
        from holdfast.planner.cluster.file import parse
    known = parse(read_text(cluster), str(cluster))
    unlike = next((node for node in known.nodes if node.devices != slots), None)
    if unlike is not None:
        raise UsageError(f"{cluster}: {unlike.name} has {unlike.devices} devices, --nproc-per-node is {slots}")
    if len(known.nodes) < most:
        raise UsageError(f"{cluster} has {len(known.nodes)} nodes, --nnodes up to {most}: write nodes = {most}")
    with progress("planning smaller layouts"):
        return _plan_all(_settings(args), known, least, most, slots)


def _settings(args: Sequence[str]) -> Config:
    from holdfast.cli.study.plan import refuse_what_is_not_planned
    from holdfast.trainer.__main__ import parse_all

    config, instead = parse_all(args)
    if instead is not None:
        raise UsageError("--replan is for training: leave out --sample, --export-hf and --traffic")
    refuse_what_is_not_planned(config)
    if len(set(config.parallel.stage_tp)) > 1:
        raise UsageError("parallel.stage_tp has entries that differ, which no prediction knows: set parallel.tp")
    if config.memory.policy != "whole" or config.train.activations != "device":
        raise UsageError(
            "--replan plans with parameters and activations on the device: leave memory.policy at whole and "
            "train.activations at device"
        )
    return config


def _plan_all(config: Config, cluster: Cluster, least: int, most: int, slots: int) -> list[Json]:
    from holdfast.controller.cluster.replanning import frontier
    from holdfast.planner.cost.predict import CostModel
    from holdfast.planner.search.reasons import NothingFits
    from holdfast.trainer.settings.layout import plan, vocab_of
    from holdfast.trainer.settings.planned import layout_of, precision_of
    from holdfast.trainer.settings.shape import shape_of

    vocab = vocab_of(config.data.tokenizer)
    own = layout_of(config, plan(config, most * slots, vocab))
    model = shape_of(config.model, vocab, config.data.seq_len)
    full_s = CostModel(_first(cluster, most), precision_of(config)).predict(model, own).step_s
    found: dict[int, Ranked] = {}
    for nodes in range(least, most):
        try:
            found[nodes] = _best(config, _first(cluster, nodes), vocab)
        except NothingFits as error:
            note(f"no layout is planned for {nodes} nodes: {error}")
    throughputs = {nodes: min(1.0, full_s / one.prediction.step_s) for nodes, one in found.items()}
    kept = frontier(throughputs.items())
    if slower := [str(nodes) for nodes in found if nodes not in kept]:
        note(f"no faster than fewer nodes, and left out: {', '.join(slower)} nodes")
    if not kept:
        note(f"no smaller layout is planned: the job waits for {most} nodes when one is lost")
    return [_document(config, nodes, throughputs[nodes], found[nodes]) for nodes in kept]


def _best(config: Config, cluster: Cluster, vocab: int) -> Ranked:
    """Of the layouts with the settings' own micro-batches, so that a step takes the same samples in the same parts."""
    from holdfast.planner.cost.predict import CostModel
    from holdfast.planner.search.budget import Budget
    from holdfast.planner.search.search import Search
    from holdfast.planner.search.space import Space
    from holdfast.trainer.settings.planned import precision_of, takes
    from holdfast.trainer.settings.shape import shape_of

    samples = config.train.micro_batches * config.train.micro_batch_size
    search = Search(
        shape_of(config.model, vocab, config.data.seq_len),
        CostModel(cluster, precision_of(config)),
        samples,
        space=Space(
            micro_batch_sizes=(config.train.micro_batch_size,),
            memory=("states" if config.optim.state == "host" else "device",),
            sub_batches=(config.parallel.sub_batches,),
            reduce_pieces=tuple(sorted({0, config.optim.reduce_pieces})),
            bucket=config.optim.bucket,
        ),
        kept=1,
        allows=lambda layout: takes(config, layout, vocab),
    )
    budget = Budget(SEARCH_S, time.monotonic)
    return search.run(budget.is_up, budget.is_too_long).best[0]


def _document(config: Config, nodes: int, throughput: float, best: Ranked) -> Json:
    from holdfast.trainer.__main__ import arguments
    from holdfast.trainer.settings.planned import changes, settings_of

    layout = best.layout
    return {
        "nodes": nodes,
        "throughput": throughput,
        "args": arguments(changes(config, settings_of(config, layout))),
        "parallel": {"pp": layout.pp, "dp": layout.dp, "tp": layout.tp},
        "text": f"pp={layout.pp} dp={layout.dp} tp={layout.tp} {layout.schedule}, ZeRO {layout.zero}",
    }


def _first(cluster: Cluster, nodes: int) -> Cluster:
    return replace(cluster, nodes=cluster.nodes[:nodes])
