"""A module of the user's own in the job's pipeline: its stages, as `holdfast.trainer.pipeline` takes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.plan.recompute import StageBytes
from holdfast.trainer.model.dropout import Moment
from holdfast.trainer.model.model import DTYPES, ModelStage
from holdfast.trainer.model.tensor_parallel import hash_of
from holdfast.trainer.modules.cuts import CannotCut
from holdfast.trainer.modules.loading import logits_of, make
from holdfast.trainer.modules.split import Partition, Piece, partition
from holdfast.trainer.modules.trace import CannotTrace, Trace, trace
from holdfast.trainer.modules.twin import land, twin
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import vocab_of
from holdfast.trainer.settings.own_module import ModuleSizes


class ModuleStage(Piece):
    """Of a module that maps tokens to logits."""

    def __init__(self, whole: Partition, index: int, moment: Moment) -> None:
        super().__init__(whole, index)
        if whole.device is not None:
            self.held.to(whole.device)
        self.is_first, self.is_last = index == 0, index == whole.stages - 1
        self.incoming = None if self.is_first else whole.messages[index - 1]
        self.outgoing = None if self.is_last else whole.messages[index]
        is_end = self.is_first or self.is_last
        self.tied = whole.cuts.tied if is_end else None
        """A parameter that the stage at the other end holds too."""
        if self.tied is not None and self.is_last and not self.is_first:
            # A copy: a rank may hold both end stages, which add up what each has.
            path, _, name = self.tied.rpartition(".")
            table = self.held.get_parameter(self.tied).detach().clone()
            setattr(self.held.get_submodule(path), name, nn.Parameter(table))
        self.moment = moment
        self.saved: StageBytes | None = None
        self.without_way_back: Callable[[], int] = lambda: 0

    def forward(self, x: Tensor, micro_batch: int) -> Tensor:  # type: ignore[override]  # a stage of a job
        """One micro-batch: tokens (batch, seq) in the first stage, else a message; logits or a message out."""
        moment = self.moment
        seed = 0
        if self.draws:
            seed = hash_of(moment.seed, "module", moment.step, moment.first_micro_batch + micro_batch)
        values = [x] if self.incoming is None else self.incoming.unpack(x)
        outputs = self._compute(self.held, seed, *values)
        return outputs[0] if self.outgoing is None else self.outgoing.pack(outputs)


AnyStage = ModelStage | ModuleStage


def open_module(config: Config, stages: int, device: torch.device, kind: str = "cpu") -> Partition:
    """Build, trace and cut the user's module. Raises ConfigError, in one line, for one that cannot be trained so.

    `kind`: where it is built, `meta` for one that is only looked at. It stays in the host's memory, and each stage
    moves what it holds to `device`; it is on the device as a whole only if its twin cannot be traced.
    """
    build, dtype = config.module.build, DTYPES[config.train.dtype]
    module = make(build, config.train.seed, dtype, kind)
    shape = (config.train.micro_batch_size, config.data.seq_len)
    try:
        # In the host's memory it is there already, and nothing that a trace makes takes memory.
        found = None if kind == "meta" or device.type == "cpu" else _without_values(module, shape, config, device)
        if found is None:
            module = module.to(device)
            tokens = torch.zeros(shape, dtype=torch.int64, device=device)
            found = trace(module, (tokens,), pick=logits_of, balance=config.module.balance)
        whole = partition(found, stages, dtype, device)
    except CannotTrace as error:
        raise ConfigError(f"module.build = {build}: {error}") from error
    except CannotCut as error:
        raise ConfigError(
            f"module.build = {build}: {error}; set parallel.pp x parallel.chunks to that or less"
        ) from error
    except TypeError as error:
        raise ConfigError(
            f"module.build = {build}: {error}: return a tensor (batch, seq, vocabulary), or an output with it as logits"
        ) from error
    _check_logits(build, found.results[0].meta["val"], shape, vocab_of(config.data.tokenizer))
    if not whole.trace.parameters:
        raise ConfigError(f"module.build = {build}: no parameter of the module has a gradient from its logits")
    return whole


def _without_values(module: nn.Module, shape: tuple[int, int], config: Config, device: torch.device) -> Trace | None:
    """The module's trace from its twin on the device; None if it has none. What is wrong with it, the trace of the
    module says."""
    try:
        other, tokens = twin(module, shape, device)
        found = trace(other, (tokens,), pick=logits_of, balance=config.module.balance)
    except Exception:  # copying runs code of the user's classes
        return None
    return land(found, module)


def boundaries(whole: Partition, device: torch.device) -> dict[int, Tensor]:
    """What crosses each cut, by number of the stage before it: one dimension, values unset."""
    return {
        index: torch.empty(message.elements, dtype=message.dtype, device=device)
        for index, message in enumerate(whole.messages)
    }


def sizes_of(whole: Partition) -> ModuleSizes:
    """Of a module in stages, what its layout makes ranks send."""
    return ModuleSizes(
        tuple(whole.shapes_of(stage) for stage in range(whole.stages)),
        tuple(message.elements * message.dtype.itemsize for message in whole.messages),
        whole.cuts.tied,
    )


def look_at(config: Config, stages: int) -> Partition:
    """A module that is not trained here, in stages; on meta tensors where it can be built so. Raises ConfigError."""
    try:
        return open_module(config, stages, torch.device("meta"), "meta")
    except ConfigError:
        # Some modules read values while they are built, and meta tensors have none.
        return open_module(config, stages, torch.device("cpu"))


def _check_logits(build: str, logits: Tensor, shape: tuple[int, int], vocab: int) -> None:
    wanted = f"({shape[0]}, {shape[1]}, {vocab} or more)"
    if logits.dim() != 3 or tuple(logits.shape[:2]) != shape or logits.shape[2] < vocab:
        raise ConfigError(
            f"module.build = {build}: for tokens {shape} its logits are {tuple(logits.shape)}, and must be {wanted}: "
            "batch, sequence, vocabulary"
        )
    if not logits.is_floating_point():
        raise ConfigError(f"module.build = {build}: its logits are {logits.dtype}, and must be floating-point")
