"""This rank's stages, and the plan that runs them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from holdfast.agent import probe
from holdfast.base.cores import cores_of_rank
from holdfast.plan.plan import Order, Plan
from holdfast.plan.schedules.axonn import axonn, default_limit
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.model.model import DTYPES, ModelStage, Moment, boundary
from holdfast.trainer.model.tensor_parallel import Parameters
from holdfast.trainer.modules.split import Partition
from holdfast.trainer.modules.stage import AnyStage, ModuleStage, boundaries
from holdfast.trainer.optim.buckets import PiggybackedReductions
from holdfast.trainer.optim.contributions import ContributionMeans, Contributions
from holdfast.trainer.optim.replicas import by_layer, share, units_of
from holdfast.trainer.pipeline.bubble_work import bubble_work
from holdfast.trainer.pipeline.crossings import Crossings, connect
from holdfast.trainer.pipeline.executor import Executor, LossFunction
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.pipeline.message_driven import MessageDrivenExecutor
from holdfast.trainer.pipeline.messages import ByNetwork, Way
from holdfast.trainer.pipeline.recompute import add_recompute, measure
from holdfast.trainer.pipeline.shared_state import NoMeans, Sharing
from holdfast.trainer.pipeline.stage import Stage
from holdfast.trainer.pipeline.transfers import POSTED_AHEAD
from holdfast.trainer.settings.checks import STAGE_AWARE, recompute_of
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.shape import shape_of

_DRAWN_BYTES = 8 << 30
"""Of the host's memory, for values that are being drawn."""


def computations_of(config: Config, layout: TrainerLayout) -> list[Order]:
    """Each pipeline rank's computations, recomputes of whole stages among them, and nothing else yet."""
    count, schedule = layout.local_micro_batches, SCHEDULES[config.parallel.schedule]
    if schedule.is_message_driven:
        orders = axonn(layout.pp, count, config.parallel.in_flight)
    else:
        orders = schedule.build(layout.pp, layout.chunks, count)
    cells = [stage for stage in range(layout.stages) if recompute_of(config.train.recompute, stage) == "cell"]
    return add_recompute(orders, cells)


def build_plan(config: Config, layout: TrainerLayout, device: torch.device) -> Plan:
    """The plan of the whole job: the same on every rank, whatever its place."""
    return job_plan(
        layout,
        config.parallel.schedule,
        layout.stages if config.module.build else config.model.layers,
        computations_of(config, layout),
        ahead=POSTED_AHEAD.get(device.type, 0),
        live=config.parallel.zero_live if config.parallel.zero_unit == "stage" else 0,
        # Chunks are gathered and freed by themselves, and their gradients reduced with them.
        zero=0 if config.memory.policy == "chunks" else config.parallel.zero,
        by_layer=by_layer(config, layout.replicas),
        reduce_each=config.parallel.zero_reduce == "each",
        sync=config.parallel.replica_sync,
        work=bubble_work(config, layout),
    )


def build_stages(
    config: Config,
    mesh: RankMesh,
    vocab: int,
    moment: Moment,
    loss: Callable[[Tensor, Tensor], Tensor],
    own: Partition | None = None,
) -> list[AnyStage]:
    """This rank's stages, with parameters initialised, split over tp and shared out over replicas.

    `own`: a module of the user's, which is trained in place of the transformer.

    With train.recompute = stage-aware, what they keep of a micro-batch has been measured; `loss` of logits and targets
    is for that. Parameters that are to be in chunks come to the device with these.
    """
    layout = mesh.layout
    if own is not None:
        return [_own_stage(own, index, moment, config, mesh) for index in layout.stages_of(mesh.pp_rank)]
    device = torch.device("cpu") if config.memory.policy == "chunks" else mesh.device
    at_once = layers_at_once(config, mesh.device, cores_of_rank(os.environ), vocab)
    make = Parameters(config.train.seed, mesh.tp, device, DTYPES[config.train.dtype], at_once)
    stages: list[AnyStage] = []
    for index in layout.stages_of(mesh.pp_rank):
        layers = layout.layers_of(index, config.model.layers)
        stage = ModelStage(config, index, layers, vocab, make, moment)
        if config.train.recompute == STAGE_AWARE:
            stage.saved = measure(stage, boundary(config, mesh.tp_size, mesh.device), config.data.seq_len, loss)
        if config.parallel.partial_backward > 1:
            stage.without_way_back = partial(_without_way_back, contributions_of(config, layout), mesh.dp_rank, moment)
        share(stage, config, mesh)
        stages.append(stage)
    return stages


def layers_at_once(config: Config, device: torch.device, cores: int, vocab: int) -> int:
    """How many layers to draw at the same time: a core draws 1.6 * 10**8 values a second, 20 s for a GPU's share of a
    large model. Ranks on CPUs have no cores to spare; and what is drawn is whole, and in float32, before it is cut."""
    if device.type == "cpu":
        return 1
    whole = 4 * shape_of(config.model, vocab, config.data.seq_len).layer_parameters
    return max(1, min(cores, _DRAWN_BYTES // whole))


def build_executor(
    config: Config,
    mesh: RankMesh,
    plan: Plan,
    stages: list[AnyStage],
    loss: LossFunction,
    piggybacked: PiggybackedReductions | None = None,
    crowded: bool = False,
    own: Partition | None = None,
) -> Executor:
    """What does this rank's part of the plan. `loss` maps logits and targets of a micro-batch to a scalar. `own` as in
    `build_stages`.

    `piggybacked` go along with the gradients of the first stage, if each replica has whole ones: its last backward is
    the last of a step. `crowded`: replicas have no core to spare for sending while they compute.
    """
    made = [
        Stage(
            stage, index, mesh.layout.stages, mesh.device, sharing_of(config, mesh, stage, piggybacked, crowded), pipe
        )
        for (index, pipe), stage in zip(mesh.layout.held_by(mesh.pp_rank), stages, strict=True)
    ]
    message = boundary(config, mesh.tp_size, mesh.device) if own is None else boundaries(own, mesh.device)
    room = config.train.activation_bytes if config.train.activations == "host" else 0
    if not SCHEDULES[config.parallel.schedule].is_message_driven:
        way = way_of(config, mesh)
        return Executor(plan, mesh.pp_rank, made, loss, mesh.pp_group, message, way=way, device_bytes=room)
    # NCCL does the messages of a link in one order, and here neither end knows the other one's.
    back = mesh.second_pp_group() if mesh.device.type == "cuda" and mesh.layout.pp > 1 else None
    limit = config.parallel.in_flight or default_limit(mesh.layout.pp)
    return MessageDrivenExecutor(plan, mesh.pp_rank, made, loss, mesh.pp_group, message, limit, back)


def way_of(config: Config, mesh: RankMesh) -> Way | None:
    """How messages go where they do not all go straight, in one group. Called by all ranks together."""
    if mesh.layout.stage_tp:
        return crossings(config, mesh)
    near = mesh.near_pp_group()
    return None if near is None else ByNetwork(*near)


def crossings(config: Config, mesh: RankMesh) -> Crossings:
    """How messages go between pipeline ranks that differ in tp. Called by all ranks together."""
    layout = mesh.layout
    if mesh.device.type == "cpu":
        line = [(p, tp) for p, size in enumerate(layout.tps) for tp in range(size)]
        near = {(layout.rank_of(stage), layout.rank_of(stage + 1)) for stage in range(layout.stages - 1)}
        near |= {(b, a) for a, b in near} | {(p, p) for p in range(layout.pp)}
        pairs = itertools.combinations(range(len(line)), 2)
        with probe.operation("setup:mesh"):
            connect([(i, j) for i, j in pairs if (line[i][0], line[j][0]) in near], mesh.pp_group)
    return Crossings(layout.tps, mesh.hosts, mesh.pp_rank, mesh.tp_rank, config.parallel.sequence)


def contributions_of(config: Config, layout: TrainerLayout) -> Contributions:
    """Which replica goes back through which layers."""
    return Contributions(config.parallel.partial_backward, layout.dp, config.model.layers)


def sharing_of(
    config: Config, mesh: RankMesh, stage: AnyStage, piggybacked: PiggybackedReductions | None, crowded: bool
) -> Sharing:
    """What replicas of a stage share, as the settings have it."""
    if config.memory.policy == "chunks":
        return Sharing(mesh.replicas.get_group(), 0, make_means=lambda module: NoMeans())
    roles = contributions_of(config, mesh.layout)
    make_means = partial(_contribution_means, roles, mesh, stage.moment) if roles.parts > 1 else None
    return Sharing(
        mesh.replicas.get_group(),
        config.parallel.zero,
        tuple(units_of(stage)) if isinstance(stage, ModelStage) and by_layer(config, mesh.layout.replicas) else (),
        config.parallel.zero_reduce == "each",
        piggybacked if stage.is_first else None,
        crowded,
        make_means,
        mesh.layout.dp if mesh.layout.pipes > 1 else 0,
        config.optim.reduce_pieces * config.optim.bucket,
    )


def _own_stage(own: Partition, index: int, moment: Moment, config: Config, mesh: RankMesh) -> ModuleStage:
    stage = ModuleStage(own, index, moment)
    share(stage, config, mesh)
    return stage


def _without_way_back(roles: Contributions, replica: int, moment: Moment) -> int:
    return roles.without_way_back(replica, moment.step)


def _contribution_means(roles: Contributions, mesh: RankMesh, moment: Moment, module: nn.Module) -> ContributionMeans:
    group = mesh.dp.get_group()
    return ContributionMeans(module.named_parameters(), group, roles, lambda: moment.step, mesh.timeout, mesh.networks)
