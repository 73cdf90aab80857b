"""Whole weights out of a checkpoint of any layout, and initial weights into one."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.folder import Slot, committed
from holdfast.checkpoint.manifest import Manifest, check_part
from holdfast.checkpoint.store import Store, open_store
from holdfast.trainer import hugging_face
from holdfast.trainer.config import Config, ModelConfig
from holdfast.trainer.errors import ConfigError
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.optimizer import MASTER
from holdfast.trainer.slices import Slice
from holdfast.trainer.state import tiles


@dataclass(frozen=True, slots=True)
class Trained:
    """A model as it was after some steps."""

    step: int
    model: ModelConfig
    tokenizer: str
    seq_len: int
    weights: dict[str, Tensor]
    """Whole parameters by name; of a bfloat16 model the finer ones that the optimizer kept."""


def newest(url: str) -> Trained:
    """The newest checkpoint in a store that is whole, put together. Raises CheckpointError when there is none."""
    store = open_store(url)
    problems = []
    for slot, manifest in committed(store):
        try:
            weights = _whole(store, slot, manifest)
        except (OSError, CheckpointError) as error:
            problems.append(f"{slot.folder}: {error}")
            continue
        state = manifest.state
        model = ModelConfig(**{entry.name: state[f"model.{entry.name}"] for entry in fields(ModelConfig)})
        return Trained(manifest.step, model, state["data.tokenizer"], state["data.seq_len"], weights)
    raise CheckpointError(problems[0] if problems else f"no checkpoint in {url}: train with --store first")


def _whole(store: Store, slot: Slot, manifest: Manifest) -> dict[str, Tensor]:
    """Every parameter, out of the tiles of all parts."""
    whole: dict[str, Tensor] = {}
    for part in manifest.parts:
        content = store.read(f"{slot.folder}/{part.file}")
        check_part(part, content)
        tensors = load(content)
        for name, tile in _tiles(content).items():
            tensor = tensors.get(f"{name}@{MASTER}", tensors[name])
            full = whole.setdefault(name, torch.empty(tile["shape"], dtype=tensor.dtype))
            full[_place(tile)] = tensor
    return whole


def _tiles(content: bytes) -> dict[str, dict[str, list[int]]]:
    """The table that `state.tiles` put into a part. A safetensors file begins with its header's length."""
    length = int.from_bytes(content[:8], "little")
    table: dict[str, dict[str, list[int]]] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["tiles"])
    return table


def _place(tile: dict[str, list[int]]) -> tuple[slice, ...]:
    return tuple(slice(o, o + s) for o, s in zip(tile["offset"], tile["size"], strict=True))


def start_from(folder: Path, config: Config, mesh: Mesh, slices: list[Slice]) -> None:
    """Set this rank's slices to the weights of a Hugging Face folder. Raises ConfigError for one that does not fit."""
    get = hugging_face.reader(folder)
    table: dict[str, dict[str, list[int]]] = json.loads(tiles(slices, mesh)["tiles"])
    with torch.no_grad():
        for piece in slices:
            whole = hugging_face.ours(piece.name, config.model, get)
            tile = table[piece.name]
            if list(whole.shape) != tile["shape"]:
                raise ConfigError(
                    f"{folder}: {piece.name} is {list(whole.shape)} there, {tile['shape']} by the settings"
                )
            piece.shard.copy_(whole[_place(tile)])
