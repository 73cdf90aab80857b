"""How a job lies on its ranks, as the planner has it; and why that cannot be."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from holdfast.base.errors import UsageError
from holdfast.plan.plan import Mesh
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.transformer import Transformer

RECOMPUTE = ("none", "selective", "full", "cell")


MEMORY = ("device", "states", "activations", "states+activations", "chunks")
"""What may be in host memory between its uses: nothing, optimizer states, activations, both, all in chunks."""
LEAST_BLOCKS = 2
"""Micro-batches of a stage that stay with activations on the host: one is computed while another comes or goes."""


class LayoutError(UsageError):
    """A layout that a model cannot have; the text says what would be possible instead."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The trainer's settings of the same names. Ranks count through tp first, then dp, then pp."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    schedule: str = "1f1b"
    chunks: int = 0
    """Stages on each rank (vpp); 0: as the schedule has it."""
    micro_batches: int = 8
    """In a step, over all replicas."""
    micro_batch_size: int = 1
    """Samples."""
    zero: int = 1
    recompute: str = "none"
    sequence: bool = False
    """Sequence parallelism: between matrices, each tp rank holds its share of the positions."""
    shard_vocabulary: bool = False
    is_on_host: bool = False
    """Optimizer states in host memory (`optim.state = host`)."""
    bucket: int = 4 << 20
    """Elements that the optimizer then updates at a time: `optim.bucket`."""
    reduce_pieces: int = 0
    """Buckets in a piece of gradients that is summed beside the update of the one before (`optim.reduce_pieces`)."""
    activation_blocks: int = 0
    """With `train.activations = host`: so many micro-batches of a rank's largest stage stay on the device. 0: all."""
    device_bytes: int = 0
    """With `memory.policy = chunks`: what a rank takes of its device, all included. 0: model data is not in chunks."""
    sub_batches: int = 1
    """Parts of a micro-batch, of which one is computed while tp ranks sum what they made of another (Merak)."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage; empty: evenly."""

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(pp=self.pp, dp=self.dp, tp=self.tp)

    @property
    def policy(self) -> str:
        """What is in host memory between its uses: one of MEMORY."""
        if self.device_bytes:
            return "chunks"
        away = ["states"] * self.is_on_host + ["activations"] * (self.activation_blocks > 0)
        return "+".join(away) or "device"

    @property
    def uses_host(self) -> bool:
        return self.policy != "device"

    @property
    def stages_per_rank(self) -> int:
        return self.chunks or SCHEDULES[self.schedule].chunks

    @property
    def stages(self) -> int:
        return SCHEDULES[self.schedule].placement.stages(self.pp, self.stages_per_rank)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """By pipe, the pipeline rank of each stage."""
        return _places(self.schedule, self.pp, self.stages_per_rank)

    def held(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """By pipe, the stages of a pipeline rank."""
        return _held(self.schedule, self.pp, self.stages_per_rank, rank)

    @property
    def replicas(self) -> int:
        """Ranks of one place in tp that hold a stage: dp in each of its pipes."""
        return self.dp * len(self.places)

    @property
    def local_micro_batches(self) -> int:
        """Of one replica."""
        return self.micro_batches // self.dp

    @property
    def samples(self) -> int:
        """In a step."""
        return self.micro_batches * self.micro_batch_size

    def layers_of(self, stage: int, layers: int) -> range:
        """As given, or evenly: the first stages take what is left over, as the trainer has it."""
        if self.stage_layers:
            start = sum(self.stage_layers[:stage])
            return range(start, start + self.stage_layers[stage])
        size, extra = divmod(layers, self.stages)
        start = stage * size + min(stage, extra)
        return range(start, start + size + (stage < extra))

    def check(self, model: Transformer, world: int | None = None) -> None:
        """LayoutError if the model cannot lie so, or not on `world` devices."""
        reason = self._obstacle(model, world)
        if reason is not None:
            raise LayoutError(f"layout pp={self.pp} dp={self.dp} tp={self.tp}: {reason}")

    def _obstacle(self, model: Transformer, world: int | None) -> str | None:
        if self.schedule not in SCHEDULES:
            return f"schedule {self.schedule[:40]!r} is not known: write one of {', '.join(SCHEDULES)}"
        schedule = SCHEDULES[self.schedule]
        for name in ("pp", "dp", "tp", "micro_batches", "micro_batch_size"):
            if getattr(self, name) < 1:
                return f"{name} is {getattr(self, name)}: must be 1 or more"
        if world is not None and self.world > world:
            return f"needs {self.world} devices, the cluster has {world}"
        groups = model.kv_heads or model.heads
        if model.heads % self.tp or groups % self.tp:
            heads = f"{model.heads} heads with {groups} of keys"
            return f"tp={self.tp} does not divide {heads}; tp can be {_divisors(groups, model.heads)}"
        if model.inner % self.tp:
            return f"tp={self.tp} does not divide the feed-forward layer's width of {model.inner}"
        if self.shard_vocabulary and model.vocab % self.tp:
            return f"tp={self.tp} does not divide the vocabulary of {model.vocab}: leave it whole"
        if self.sequence and model.length % self.tp:
            return f"tp={self.tp} does not divide {model.length} tokens: set sequence = false"
        if self.micro_batches % self.dp:
            return f"dp={self.dp} does not divide {self.micro_batches} micro-batches"
        if not schedule.takes_chunks and self.stages_per_rank != schedule.chunks:
            return f"schedule {schedule.name} has {schedule.chunks} stages a rank, not {self.stages_per_rank}"
        if (unfit := schedule.obstacle(self.pp, self.local_micro_batches)) is not None:
            return f"schedule {schedule.name} {unfit}"
        if self.stages > model.layers:
            return f"{self.stages} stages for {model.layers} layers: take pp x chunks of {model.layers} or less"
        if (own := self.stage_layers) and (len(own) != self.stages or sum(own) != model.layers or min(own) < 1):
            return f"stage_layers {list(own)}: {self.stages} stages need 1 or more each, {model.layers} in all"
        if self.zero not in range(4):
            return f"zero is {self.zero}: write 0, 1, 2 or 3"
        if self.recompute not in RECOMPUTE:
            return f"recompute is {self.recompute[:40]!r}: write one of {', '.join(RECOMPUTE)}"
        if schedule.recomputes and self.recompute != "none":
            return f"schedule {schedule.name} recomputes whole stages already: set recompute = none"
        if schedule.is_message_driven and (self.tp > 1 or self.zero == 3 or self.recompute == "cell"):
            return f"schedule {schedule.name} lets each rank decide what is next: set tp = 1, zero below 3, no cell"
        if self.zero == 3 and (schedule.placement is Placement.BOTH_WAYS or schedule.halves_backward):
            return f"schedule {schedule.name} cannot gather parameters by layer: set zero to 2 or less"
        try:
            _places(self.schedule, self.pp, self.stages_per_rank)
        except ValueError as error:
            return f"schedule {schedule.name} {error}"
        return self._unfit_memory() or self._unfit_pieces(model)  # pieces ask for places: they must be there

    def _unfit_memory(self) -> str | None:
        """Why this cannot be in host memory, None if it can."""
        if self.activation_blocks:
            if self.activation_blocks < LEAST_BLOCKS:
                return f"activation_blocks is {self.activation_blocks}: {LEAST_BLOCKS} or more must stay"
            if self.zero == 3 or SCHEDULES[self.schedule].is_message_driven:
                return "activations on the host need a fixed order and whole parameters: set zero to 2 or less, 1f1b"
        if not self.device_bytes:
            return None
        if self.is_on_host or self.activation_blocks:
            return "chunks say themselves what is in host memory: leave states and activations to them"
        if self.stages > 1 or self.tp > 1 or self.local_micro_batches > 1:
            return "chunks hold one stage, whole layers and one micro-batch: set pp = 1, tp = 1, micro_batches = dp"
        if self.dp > 1 and self.zero != 3:
            return "chunks are shared over replicas as by stage 3: set zero = 3"
        return None

    def _unfit_pieces(self, model: Transformer) -> str | None:
        """Why neither micro-batches nor gradients can go in pieces so, None if they can."""
        schedule = SCHEDULES[self.schedule]
        if self.sub_batches > 1:
            if self.tp == 1 or self.sequence or self.zero == 3:
                return "sub_batches hide sums of tp ranks: set tp to 2 or more, sequence = false, zero below 3"
            if schedule.halves_backward or self.recompute == "full":
                return "sub_batches need whole backwards, and no recompute = full"
        if self.sub_batches < 1 or self.micro_batch_size % (self.sub_batches * schedule.parts):
            return f"micro_batch_size = {self.micro_batch_size} cannot be cut in {self.sub_batches} for sub_batches"
        if not self.reduce_pieces:
            return None
        if not self.is_on_host or self.zero or self.tp > 1 or len(self.places) > 1:
            return "reduce_pieces are of whole gradients and states on the host: set zero = 0, tp = 1, one pipe"
        if model.tied and self.stages > 1:
            return "reduce_pieces need gradients that are there at once, and a tied table's are added up after all"
        return None


@functools.lru_cache(maxsize=4096)
def _places(schedule: str, pp: int, chunks: int) -> list[tuple[int, ...]]:
    return SCHEDULES[schedule].placement.places(pp, chunks)


@functools.lru_cache(maxsize=4096)
def _held(schedule: str, pp: int, chunks: int, rank: int) -> tuple[tuple[int, ...], ...]:
    pipes = _places(schedule, pp, chunks)
    return tuple(tuple(stage for stage, at in enumerate(pipe) if at == rank) for pipe in pipes)


def _divisors(groups: int, heads: int) -> str:
    fit = [n for n in range(1, groups + 1) if groups % n == 0 and heads % n == 0]
    return ", ".join(map(str, fit))
