"""Text from a trained model, in one process: whole weights, one token after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from holdfast.trainer.data.corpus import open_tokenizer
from holdfast.trainer.data.tokens import SEPARATOR
from holdfast.trainer.mesh.mesh import leave
from holdfast.trainer.model.model import ModelStage, Moment
from holdfast.trainer.model.tensor_parallel import Parameters
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import vocab_of
from holdfast.trainer.weights.weights import Trained


def sample(config: Config, trained: Trained, prompt: str, count: int, temperature: float) -> str:
    """`count` tokens that follow on `prompt`, as text. Temperature 0 always takes the most likely token.

    Otherwise they are drawn from train.seed. Raises ConfigError when the tokenizer cannot be found again.
    """
    tokenizer = open_tokenizer(replace(config.data, tokenizer=trained.tokenizer))
    start = [SEPARATOR, *map(int, tokenizer.encode(prompt.encode()))]
    generator = torch.Generator().manual_seed(config.train.seed)
    try:
        with torch.no_grad():
            model = build(trained)
            tokens = list(_continue(model, start, trained.seq_len, count, temperature, generator))
    finally:
        leave()
    return tokenizer.decode(tokens)


def build(trained: Trained) -> ModelStage:
    """The whole model as one stage, with its weights, on the CPU. Joins a process group of its own: see mesh.leave."""
    whole = replace(trained.model, dropout=0.0)
    config = Config(model=whole)
    config = replace(config, data=replace(config.data, seq_len=trained.seq_len))
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch forgot to list it
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    make = Parameters(0, mesh, torch.device("cpu"))
    stage = ModelStage(config, 0, range(whole.layers), vocab_of(trained.tokenizer), make, Moment(0))
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            parameter.copy_(trained.weights[name])  # alone, so a plain tensor
    return stage


def _continue(
    model: ModelStage, tokens: list[int], seq_len: int, count: int, temperature: float, generator: torch.Generator
) -> Iterator[int]:
    for _ in range(count):
        # No more than the model was trained on at a time: later positions mean nothing to it.
        seen = torch.tensor([tokens[-seq_len:]])
        logits: Tensor = model(seen, torch.tensor(0))[0, -1]
        if temperature:
            share = torch.softmax(logits.double() / temperature, dim=-1)
            token = int(torch.multinomial(share, 1, generator=generator))
        else:
            token = int(logits.argmax())
        tokens.append(token)
        yield token
