"""The training loop: the same steps in the same order, however often it is started again."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from holdfast.agent import probe
from holdfast.base.host_memory import keep_freed
from holdfast.checkpoint.stores.opening import check_place
from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.plan.plan import Op
from holdfast.trainer.chunks.model import ModelInChunks
from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.corpus import Corpus, open_corpus
from holdfast.trainer.data.feed import Feed, Inline, open_feed
from holdfast.trainer.mesh.mesh import RankMesh, choose_device, is_crowded, join, leave, require_agreement
from holdfast.trainer.model import accumulate
from holdfast.trainer.model.loss import is_split, mean_loss
from holdfast.trainer.model.model import ModelStage, Moment
from holdfast.trainer.model.tensor_parallel import hash_of
from holdfast.trainer.modules.split import Partition
from holdfast.trainer.modules.stage import open_module, sizes_of
from holdfast.trainer.optim.buckets import PiggybackedReductions
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import GradientSums, slices_of
from holdfast.trainer.optim.traffic import chunks_of
from holdfast.trainer.pipeline import halves, pipeline
from holdfast.trainer.pipeline.recompute import kinds, settle
from holdfast.trainer.report.meters import Meter
from holdfast.trainer.report.report import Reporter
from holdfast.trainer.run.published_plan import publish_plan
from holdfast.trainer.run.turns import open_turns
from holdfast.trainer.settings.checks import STAGE_AWARE, recompute_of
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import NonFiniteLoss
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.settings.layout import TrainerLayout, plan, vocab_of
from holdfast.trainer.telemetry import spans
from holdfast.trainer.telemetry.garbage import gc_disabled
from holdfast.trainer.telemetry.totals import Pending, Totals, arrived, riding, start_sum
from holdfast.trainer.weights.persist import make_manager
from holdfast.trainer.weights.state import settings
from holdfast.trainer.weights.weights import start_from

if TYPE_CHECKING:
    from holdfast.trainer.memory.report import MemoryReport


class Trainer:
    """One rank's share of the model and of every step."""

    def __init__(
        self, config: Config, mesh: RankMesh, corpus: Corpus, crowded: bool = False, own: Partition | None = None
    ) -> None:
        """`crowded`: as `is_crowded` says. `own`: a module of the user's, if there is one and it is open already."""
        self.config, self.mesh = config, mesh
        self.tp_group = mesh.tp.get_group()  # torch looks it up anew each time, which takes 0.4 ms
        spans.watch_device(mesh.device)
        layout = mesh.layout
        self.micro_batches = layout.micro_batches_of(mesh.dp_rank)
        self.moment = Moment(config.train.seed, first_micro_batch=self.micro_batches.start)
        if own is None and config.module.build:
            own = open_module(config, layout.stages, mesh.device)
        self.forward_flops = None if own is None else own.trace.flops
        """Of a micro-batch through a module of the user's."""
        self.own_digest = 0 if own is None else own.digest
        """Of that module as it is cut."""
        self.own_sizes = None if own is None else sizes_of(own)
        self.stages = pipeline.build_stages(config, mesh, corpus.vocab, self.moment, self._mean_loss, own)
        self.has_first = any(stage.is_first for stage in self.stages)
        self.has_last = any(stage.is_last for stage in self.stages)
        self.plan = pipeline.build_plan(config, layout, mesh.device)
        self.recomputation = settle(self.plan, mesh, self._layered()) if config.train.recompute == STAGE_AWARE else None
        """What stages keep of each micro-batch, where that is planned."""
        order = self.plan.orders[mesh.pp_rank]
        self.load = next((action for action in order if action.op is Op.LOAD), None)
        """With which this rank reads data, if it does."""
        is_whole = layout.pp == layout.tp == config.parallel.partial_backward == 1
        self._votes_ride = is_whole
        """With the sums of gradients, where there are any."""
        piggybacked = PiggybackedReductions(self._riding, self._arrived) if is_whole else None
        self.executor = pipeline.build_executor(
            config, mesh, self.plan, self.stages, self._loss, piggybacked, crowded, own
        )
        self.chunks: ModelInChunks | None = None
        """Where parameters, gradients and states are in chunks."""
        if config.memory.policy == "chunks":
            (stage,) = self.stages
            assert isinstance(stage, ModelStage), "a module of the user's own is refused"
            self.chunks = ModelInChunks(stage, config, mesh)
        self.slices = slices_of(self.stages, mesh) if self.chunks is None else self.chunks.slices()
        self._losses: list[torch.Tensor] = []
        """Of the micro-batches of this step so far."""
        self._pending: Pending | None = None
        sums = GradientSums(self.slices, mesh, config.parallel.sequence)
        if config.train.start_from:
            start_from(Path(config.train.start_from), config, mesh, self.slices)
        rows = len(self.micro_batches) * config.train.micro_batch_size * config.data.seq_len
        self.optimizer = (
            Optimizer(config.optim, self.slices, mesh, sums, rows, self.executor.late())
            if self.chunks is None
            else self.chunks.optimizer(self.slices, sums)
        )
        if (bubbles := self.optimizer.use_bubbles(order) if config.optim.kfac_fill else None) is not None:
            self.executor.second_order = bubbles.do
        self.skipped = 0
        """Steps in a row that were not finite and were left out."""
        batches = (config.data.seq_len, config.train.seed, config.train.micro_batches, config.train.micro_batch_size)
        self.batches = Batches(corpus.tokens, *batches)
        self.feed: Feed = Inline(self.batches, self.micro_batches)
        self.turns = open_turns(mesh.device)
        self.executor.computed = self.turns.give_back
        self.votes: Callable[[int], Sequence[bool]] = lambda steps: ()
        """What this rank answers when all are asked together, before its state becomes that after `steps` steps."""

    def _layered(self) -> list[ModelStage]:
        """Stages that have layers of ours."""
        return [stage for stage in self.stages if isinstance(stage, ModelStage)]

    def gradients(self, step: int) -> None:
        """Forward and backward of one step; gradients are then on the shards."""
        self.moment.step = step
        inputs = targets = None
        self.executor.prefetch()
        if self.load is not None:
            with spans.action(Op.LOAD, self.load.stage, turn=self.load.turn):
                x, y = self.feed.read(step)
            inputs = _moved(x, self.mesh.device) if self.has_first else None
            targets = _moved(y, self.mesh.device) if self.has_last else None
        self._losses.clear()
        around = contextlib.nullcontext() if self.chunks is None else self.chunks.computing()
        self.turns.take()
        with accumulate.watching(self.optimizer.watchers(), self.optimizer.inputs()), around:
            self.executor.step(inputs, targets)
        self._say_moved()
        self.optimizer.collect()

    def step(self, step: int) -> Totals:
        """Do step `step`. One that is not finite is applied nowhere: it is skipped, or ends the run.

        Raises NonFiniteLoss, on every rank.
        """
        self._pending = None
        self.gradients(step)
        # Votes wait until the snapshot of the step before is copied: nothing may change before that.
        votes = None if self._votes_ride else self.votes(step + 1)
        self.optimizer.update_beside(step)
        if self._pending is None:
            squares = None if self.optimizer.holds_all else self.optimizer.squares()
            self._pending = start_sum(self._share(), squares, self.votes(step + 1) if votes is None else votes)
        totals = self.optimizer.step(step, self._pending)
        if totals.is_finite:
            self.skipped = 0
        elif self.config.train.on_nonfinite == "skip" and self.skipped < self.config.train.max_skips:
            self.skipped += 1
        else:
            # Only ranks where it began say so: those that merely learn of it must not look like the cause.
            if self.mesh.device_mesh.get_rank() in totals.bad_ranks or not totals.bad_ranks:
                probe.step(step, loss=math.nan)
            raise NonFiniteLoss(step, totals.loss, totals.bad_ranks)
        return totals

    def _say_moved(self) -> None:
        """Where activations go to the host: what that moves, by one of each stage's replicas."""
        offload = self.executor.offload
        if offload is None or self.mesh.dp_rank or self.mesh.tp_rank:
            return
        if news := offload.news(self.mesh.pp_rank):
            print(news, flush=True)

    def _riding(self) -> torch.Tensor:
        return riding(self._share(), self.votes(self.moment.step + 1))

    def _arrived(self, sums: torch.Tensor) -> None:
        """The loss came with the gradients; each rank then finds their norm by itself."""
        self._pending = arrived(sums)

    def _share(self) -> torch.Tensor:
        """This rank's share of the step's loss, on its device: over all ranks they add up to the global mean."""
        if not self._losses:
            share = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        else:
            total = torch.stack([loss.double() for loss in self._losses]).sum()
            # Either each tp rank knows the loss of all tokens, or each that of its own.
            share = total / self.mesh.layout.dp / (1 if self.loss_is_split else self.mesh.tp_size)
        return share * math.nan if probe.poisoned() else share

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor, share: float) -> torch.Tensor:
        loss = self._mean_loss(logits, targets)
        loss = loss if share == 1 else loss * share
        self._losses.append(loss.detach())
        return loss

    def _mean_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return mean_loss(logits, targets, self.tp_group, self.config.parallel, len(self.micro_batches))

    @property
    def loss_is_split(self) -> bool:
        """Whether each tp rank has whole logits, but at its own positions only."""
        return is_split(self.config.parallel)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    first_step: int
    """Step that it began with: 0, or where the checkpoint left off."""
    losses: list[float]
    """Global loss of each step done."""
    is_stored: bool = True
    """False when there is a store, and it does not have the state after the last step."""


def run(config: Config, launch: Launch) -> Outcome:
    """Train as configured, in this process as one rank of the job.

    Raises ConfigError before any process group exists when the settings cannot work; NonFiniteLoss,
    Disagreement, CheckpointError as they say; RuntimeError from torch when a peer is gone.
    """
    if not torch.cuda.is_available():
        keep_freed(one_arena=True)
        if launch.is_distributed:
            torch.set_num_threads(1)  # ranks of one host share its cores: more threads only get in their way
    probe.attach()
    probe.phase("setup")
    vocab = vocab_of(config.data.tokenizer)
    layout = plan(config, launch.world, vocab)
    halves.check(config)
    device = choose_device(config, launch)
    if config.checkpoint.store:
        check_place(config.checkpoint.store)  # before hours of preparing data
    own = open_module(config, layout.stages, device) if config.module.build else None
    with probe.operation("setup:corpus"):
        corpus = open_corpus(config.data)
    coordinate = layout.coordinate(launch.rank)
    probe.mesh(
        pp=coordinate[0], dp=coordinate[1], tp=coordinate[2], sizes=(layout.pp, layout.dp, layout.tp)
    )  # tp: the largest
    begin_gauging = _memory_report(config, layout, vocab, device, launch.rank) if config.train.memory_path else None
    if config.memory.policy == "chunks":
        chunks_of(config, layout, vocab, config.memory.device_bytes)  # what does not fit is refused before ranks meet
    mesh = join(config, launch, layout, device)
    done = finished = False
    trainer = manager = gauged = None
    try:
        trainer = Trainer(config, mesh, corpus, is_crowded(launch, device), own)
        own = None  # the stages of other ranks
        if launch.rank == 0 and probe.attached():
            publish_plan(trainer.plan, config, launch.world, device, trainer.own_sizes)
        trainer.feed = open_feed(config, launch, mesh, trainer.batches, trainer.has_first or trainer.has_last)
        fixed = settings(config, corpus.digest)
        what = "settings, data or module" if config.module.build else "settings or data"
        require_agreement(_fingerprint(config, fixed, trainer.own_digest), what)
        if config.checkpoint.store:
            manager = make_manager(config.checkpoint, launch, mesh, trainer.slices, trainer.optimizer, fixed)
        gauged = None if begin_gauging is None else begin_gauging(trainer)
        outcome = _train(config, launch, trainer, manager, gauged)
        finished = True
        done = launch.rank == 0
        return outcome
    finally:
        if gauged is not None:
            gauged.close()
        if trainer is not None:
            trainer.feed.close()
            trainer.turns.close()
        if manager is not None:
            manager.close(finished)
        leave(mesh.store, done, "" if finished else mesh.device.type)


def _train(
    config: Config, launch: Launch, trainer: Trainer, manager: CheckpointManager | None, gauged: MemoryReport | None
) -> Outcome:
    mesh, train = trainer.mesh, config.train
    is_reporter = mesh.has_loss and mesh.dp_rank == mesh.tp_rank == 0
    first = 0
    if manager and config.checkpoint.restore:
        probe.phase("restore")
        first = manager.restore()
        if first and is_reporter:
            origin = config.checkpoint.store if manager.source == "store" else manager.source
            print(f"restored step {first} from {origin}: {manager.traffic}", flush=True)
    if manager:
        manager.open()
        trainer.votes = manager.votes
    # Tokens that this rank alone answers for: a replica's tokens are shared by its tp x pp ranks, to the last one.
    tokens = train.micro_batches * train.micro_batch_size * config.data.seq_len
    own_tokens = tokens * (launch.rank + 1) // launch.world - tokens * launch.rank // launch.world
    losses: list[float] = []
    probe.phase("train")
    meter = _meter(trainer)
    reporting = Reporter(train, meter, tokens) if is_reporter else contextlib.nullcontext()
    with reporting as reporter, gc_disabled(train.gc_every) as collect_garbage:
        for step in range(first, train.steps):
            spans.clock.take()
            started = time.perf_counter()
            totals = trainer.step(step)
            spans.step_done()
            seconds = time.perf_counter() - started
            parts = spans.clock.take()
            losses.append(totals.loss)
            # A NaN loss is a fault to the controller; one that was skipped has been dealt with.
            # All ranks know the loss and report it: a report from one node alone would be lost with that node.
            is_known = totals.is_finite
            memory = meter.memory_bytes()
            probe.meters(meter.mfu(seconds), tokens / seconds, list(parts.values()), memory, totals.norm)
            probe.step(step, loss=totals.loss if is_known else None, tokens=own_tokens if totals.is_finite else 0)
            if reporter is not None:
                if trainer.chunks is not None and step == first:
                    print(trainer.chunks.text, flush=True)
                moved = None if trainer.chunks is None else asdict(trainer.chunks.moved())
                reporter.step(step, totals, seconds, parts, moved)
            if gauged is not None:
                gauged.after_step()
            if manager:
                manager.after_step(step + 1, totals.votes, is_last=step + 1 == train.steps)
            mesh.keep_rendezvous_alive()
            collect_garbage(step + 1)
    if manager and first >= train.steps:
        manager.after_step(first, (), is_last=True)  # what came from memory is not in the store yet
    probe.phase("done")
    return Outcome(first, losses, manager is None or manager.is_stored)


def _memory_report(
    config: Config, layout: TrainerLayout, vocab: int, device: torch.device, rank: int
) -> Callable[[Trainer], MemoryReport]:
    """Work out what ranks will hold, and return what begins to measure it. Before the job's groups exist, beside which
    there could not be those of the pretence."""
    # Late: most runs do without.
    from holdfast.trainer.memory.expected import expect
    from holdfast.trainer.memory.measured import Gauge
    from holdfast.trainer.memory.report import MemoryReport, check_path

    if rank == 0:
        check_path(config.train.memory_path)
    expected = expect(config, layout, vocab, device.type)

    def begin(trainer: Trainer) -> MemoryReport:
        gauge = Gauge(trainer.executor, trainer.stages, trainer.optimizer, device)
        return MemoryReport(config.train.memory_path, expected, gauge, trainer.mesh)

    return begin


def _moved(tokens: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """On the device; the host does not wait for a GPU to take it."""
    found = torch.from_numpy(tokens)
    return found if device.type == "cpu" else found.pin_memory().to(device, non_blocking=True)


def _meter(trainer: Trainer) -> Meter:
    config, layout = trainer.config, trainer.mesh.layout
    whole = {action.stage for _, action in trainer.plan.actions() if action.op is Op.RECOMPUTE}
    sizes = [len(layout.layers_of(stage, config.model.layers)) for stage in range(layout.stages)]
    if trainer.recomputation is not None:
        kept = trainer.recomputation.kept.items()
        recomputes = [kind for (stage, _), one in kept for kind in kinds(one, sizes[stage])]
    else:
        recomputes = [
            "full" if stage in whole else recompute_of(config.train.recompute, stage)
            for stage, size in enumerate(sizes)
            for _ in range(size)
        ]
    vocab = vocab_of(config.data.tokenizer)
    way_back = pipeline.contributions_of(config, layout).share()
    head_again = layout.stages - 1 in whole
    device, own = trainer.mesh.device, trainer.forward_flops
    return Meter(config, vocab, device, layout.world, recomputes, head_again, way_back, own)


def _fingerprint(config: Config, fixed: dict[str, object], own: int) -> int:
    """What all ranks must have in common, as a number below 2**62."""
    shared = replace(config.checkpoint, keep=1)
    return (
        hash_of(
            json.dumps(fixed),
            repr(config.optim),
            repr(shared),
            repr(config.parallel),
            repr(config.memory),
            config.train.steps,
            own,
        )
        >> 1
    )
