"""What to say when a device has run out of memory: what was expected of it, and what needs less. Needs torch."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

from holdfast.trainer.memory.choices import next_that_fits, settings_of
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.memory.words import size, table
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.settings.layout import plan, vocab_of

RESERVE = 2 * 10**9
"""Bytes of a GPU that no tensor gets: the CUDA context (about 0.5 GB), NCCL's buffers, cuBLAS' workspace, and what the
allocator cannot use for being in pieces."""
_ASKED = re.compile(r"Tried to allocate ([\d.]+ [KMGT]?i?B)")


def explain(config: Config, launch: Launch, error: BaseException) -> tuple[list[str], str]:
    """The table of all ranks, and one line with the reason and the next setting. After the job's groups have ended."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if config.module.build:
        advice = "set parallel.pp higher, train.recompute = cell, optim.state = host or train.micro_batch_size lower"
        return [], f"rank {launch.rank} is out of memory with module.build = {config.module.build}: {advice}"
    vocab = vocab_of(config.data.tokenizer)
    layout = plan(config, launch.world, vocab)
    device = "cuda" if torch.cuda.is_available() and config.parallel.device != "cpu" else "cpu"
    try:
        expected = expect(config, layout, vocab, device)
    except ConfigError as refused:
        return [], f"rank {launch.rank} is out of memory; {refused}"
    own = expected.ranks[layout.coordinate(launch.rank)[0]].total
    capacity = _capacity(device, launch)
    limit = min(expected.needs - 1, capacity) if capacity else expected.needs - 1
    asked = _ASKED.search(str(error))
    text = f"rank {launch.rank} is out of memory"
    text += f": it asked for {asked[1]} more" if asked else ""
    text += f"; expected were {size(own)} in all"
    text += f" of {size(capacity)}" if capacity else ""
    found = next_that_fits(config, launch.world, vocab, device, limit, (config.parallel.schedule,))
    if found is None:
        text += "; no recompute, ZeRO stage, micro-batch size or place of optimizer states needs less: raise pp or tp"
        return table(expected), text
    choice, then = found
    flags = " ".join(f"--set {setting}" for setting in settings_of(choice, config))
    return table(expected), f"{text}; next that fits: {flags} ({size(then.needs)})"


def _capacity(device: str, launch: Launch) -> int:
    """Bytes for tensors; 0 if unknown."""
    if device != "cuda":
        return 0
    index = min(launch.local_rank, torch.cuda.device_count() - 1)
    return max(0, torch.cuda.get_device_properties(index).total_memory - RESERVE)
