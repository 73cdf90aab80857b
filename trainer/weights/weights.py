"""Whole weights out of a checkpoint of any layout, and initial weights into one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.restore.inspect import Progress
from holdfast.checkpoint.restore.restore import load_whole
from holdfast.checkpoint.stores.folder import Slot, committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.store import Store
from holdfast.checkpoint.worker.torch_state import to_torch
from holdfast.trainer.data.corpus import open_corpus, open_tokenizer
from holdfast.trainer.data.tokens import ByteTokenizer, Tokenizer
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.states import MASTER
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config, DataConfig, ModelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, vocab_of
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
    digest: int | None = None
    """Of the tokens that it was trained on; None: unknown."""


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


def trained(
    store: Store, slot: Slot, manifest: Manifest, progress: Progress | None = None, given: Config | None = None
) -> Trained:
    """The whole weights of one checkpoint, each byte checked.

    `given` are the settings of one that holds none, as an imported one. Raises CheckpointMismatch for a checkpoint
    without settings, or whose parameters are not theirs; CheckpointError, OSError.
    """
    model, tokenizer, seq_len = settings(slot, manifest, given)
    _check_parameters(manifest, model, tokenizer, seq_len)
    names = {name for name in manifest.tensors if "@" not in name}
    finest = {name: f"{name}@{MASTER}" if f"{name}@{MASTER}" in manifest.tensors else name for name in names}
    whole = load_whole(store, slot, manifest, finest.values(), progress)
    weights = {name: to_torch(whole[finest[name]]) for name in names}
    digest = manifest.state.get("data.digest")
    return Trained(manifest.step, model, tokenizer, seq_len, weights, digest if type(digest) is int else None)


def tokenizer_of(found: Trained, data: DataConfig) -> Tokenizer | None:
    """The tokenizer of a model; None if it must be trained again, and `data` does not describe the run's text.

    Raises ConfigError if that text has changed.
    """
    if found.tokenizer == "bytes":
        return ByteTokenizer()
    if data.tokenizer != found.tokenizer:
        return None
    if found.digest is not None and open_corpus(data).digest != found.digest:
        raise ConfigError(
            f"data.path {data.path or 'default'} is not the text that {found.tokenizer} was trained on: "
            "name the run's own settings and text"
        )
    return open_tokenizer(data)


def settings(slot: Slot, manifest: Manifest, given: Config | None) -> tuple[ModelConfig, str, int]:
    """Model, tokenizer and length of samples: as the checkpoint says, else as given. Raises CheckpointMismatch."""
    state = manifest.state
    if "module.build" in state:
        raise CheckpointMismatch(
            f"{slot.folder} is of {state['module.build']}, a module of your own: only the transformer has this; "
            "its tensors have the names of your module's parameters"
        )
    if given is not None and "model.layers" not in state:
        return given.model, given.data.tokenizer, given.data.seq_len
    try:
        model = ModelConfig(**{entry.name: state[f"model.{entry.name}"] for entry in fields(ModelConfig)})
        tokenizer, seq_len = state["data.tokenizer"], state["data.seq_len"]
    except KeyError as error:
        raise CheckpointMismatch(
            f"{slot.folder} was not written by holdfast train: it has no setting {error}; "
            "name a file with the settings of its run (checkpoint export --config FILE)"
        ) from None
    for name, default in {**asdict(ModelConfig()), "tokenizer": "", "seq_len": 0}.items():
        value = {**asdict(model), "tokenizer": tokenizer, "seq_len": seq_len}[name]
        if type(value) is not type(default) and not (isinstance(default, float) and type(value) is int):
            raise CheckpointMismatch(f"{slot.folder} was not written by holdfast train: its {name} is {value!r:.40}")
    try:
        check(Config(model=model, data=DataConfig(tokenizer=tokenizer, seq_len=seq_len)))
    except ConfigError as error:
        raise CheckpointMismatch(f"{slot.folder} was not written by holdfast train: {error}") from None
    return model, tokenizer, seq_len


def _check_parameters(manifest: Manifest, model: ModelConfig, tokenizer: str, seq_len: int) -> None:
    config = Config(model=model, data=DataConfig(seq_len=seq_len))
    layout = TrainerLayout(pp=1, dp=1, tp=1, chunks=1, local_micro_batches=1)
    for held in held_by(config, layout, vocab_of(tokenizer), 0):
        tensor = manifest.tensors.get(held.name)
        if tensor is None:
            raise CheckpointMismatch(
                f"the checkpoint of step {manifest.step} has no {held.name}, which a model of its settings has here: "
                "use the version of Holdfast that wrote it, or the settings of its run"
            )
        if tensor.shape != held.shape:
            raise CheckpointMismatch(
                f"the checkpoint of step {manifest.step} has {held.name} as {list(tensor.shape)}, by its settings "
                f"it is {list(held.shape)}: use the settings of its run"
            )


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
