"""Whole weights out of a checkpoint of any layout, and initial weights into one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.restore.inspect import Progress
from holdfast.checkpoint.restore.restore import load_whole
from holdfast.checkpoint.stores.folder import Slot, committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.store import Store
from holdfast.checkpoint.worker.torch_state import to_torch
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.optimizer import MASTER
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.settings.config import Config, DataConfig, ModelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.weights import hugging_face
from holdfast.trainer.weights.state import shards


@dataclass(frozen=True, slots=True)
class Trained:
    """A model as it was after some steps."""

    step: int
    model: ModelConfig
    tokenizer: str
    seq_len: int
    weights: dict[str, Tensor]
    """Whole parameters by name; of a bfloat16 model the finer ones that the optimizer kept."""


def newest(url: str, report: Callable[[str], None] = lambda line: None) -> Trained:
    """The newest checkpoint in a store that is whole, put together. Raises CheckpointError when there is none.

    `report` gets a line for each that was passed over.
    """
    store = open_store(url)
    problems: list[str] = []
    for slot, manifest in committed(store, problems.append):
        try:
            found = trained(store, slot, manifest)
        except (OSError, CheckpointError) as error:
            problems.append(f"{slot.folder}: {error}")
            continue
        for line in problems:
            report(f"checkpoint passed over: {line}")
        return found
    raise CheckpointError(problems[0] if problems else f"no checkpoint in {url}: train with --store first")


def trained(store: Store, slot: Slot, manifest: Manifest, progress: Progress | None = None) -> Trained:
    """The whole weights of one checkpoint, each byte checked. Raises CheckpointError, OSError."""
    state, names = manifest.state, {name for name in manifest.tensors if "@" not in name}
    try:
        model = ModelConfig(**{entry.name: state[f"model.{entry.name}"] for entry in fields(ModelConfig)})
        tokenizer, seq_len = state["data.tokenizer"], state["data.seq_len"]
    except KeyError as error:
        raise CheckpointError(f"{slot.folder} was not written by holdfast train: it has no setting {error}") from None
    for name, default in {**asdict(ModelConfig()), "tokenizer": "", "seq_len": 0}.items():
        value = {**asdict(model), "tokenizer": tokenizer, "seq_len": seq_len}[name]
        if type(value) is not type(default) and not (isinstance(default, float) and type(value) is int):
            raise CheckpointError(f"{slot.folder} was not written by holdfast train: its {name} is {value!r:.40}")
    config = Config(model=model, data=DataConfig(seq_len=seq_len))
    needed = [
        held.name for held in held_by(config, TrainerLayout(pp=1, dp=1, tp=1, chunks=1, local_micro_batches=1), 0, 0)
    ]
    if missing := [name for name in needed if name not in names]:
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} has no {missing[0]}, which a model of its settings has here: "
            "use the version of Holdfast that wrote it"
        )
    finest = {name: f"{name}@{MASTER}" if f"{name}@{MASTER}" in manifest.tensors else name for name in names}
    whole = load_whole(store, slot, manifest, finest.values(), progress)
    weights = {name: to_torch(whole[finest[name]]) for name in names}
    return Trained(manifest.step, model, tokenizer, seq_len, weights)


def start_from(folder: Path, config: Config, mesh: RankMesh, slices: list[Slice]) -> None:
    """Set this rank's slices to the weights of a Hugging Face folder. Raises ConfigError for one that does not fit."""
    get = hugging_face.reader(folder)
    table = shards(slices)
    with torch.no_grad():
        for piece in slices:
            whole = hugging_face.ours(piece.name, config.model, get)
            tensor, shard = table[piece.name]
            if tuple(whole.shape) != tensor.shape:
                raise ConfigError(
                    f"{folder}: {piece.name} is {list(whole.shape)} there, {list(tensor.shape)} by the settings"
                )
            piece.shard.copy_(whole[shard.slices])
