"""What transformers makes of an exported folder, beside what our model computes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a folder is all they get

import torch
from torch import Tensor

from holdfast.trainer.mesh.mesh import leave
from holdfast.trainer.settings.config import Config
from holdfast.trainer.weights.sample import build, sample
from holdfast.trainer.weights.weights import Trained

PROMPT = "def read(self"


def loaded(folder: Path) -> Any:
    """Their model, with every one of its parameters out of the folder, and no other in it."""
    from transformers import AutoModelForCausalLM  # here: it takes seconds, of every run that only collects this

    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(found.values()), found
    return model.eval()


def tokenizer_of(folder: Path, **options: Any) -> Any:
    """Their tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **options)


def difference(folder: Path, trained: Trained) -> float:
    """The largest one among logits of both, for samples of the length that ours was trained on."""
    vocab = trained.weights["embed.weight"].shape[0]
    tokens = torch.randint(0, vocab, (3, trained.seq_len), generator=torch.Generator().manual_seed(1))
    try:
        with torch.no_grad():
            ours: Tensor = build(trained)(tokens, torch.tensor(0))
            theirs = loaded(folder)(tokens).logits
    finally:
        leave()
    assert ours.abs().max() > 1e-3  # or nothing would be compared
    return float((ours - theirs).abs().max())


def continuations(folder: Path, trained: Trained, count: int) -> tuple[str, str]:
    """What both say after the prompt, always with the likeliest token."""
    model, tokenizer = loaded(folder), tokenizer_of(folder)
    model.generation_config.eos_token_id = None  # ours goes on after the end of a document
    start = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(PROMPT)]])
    said = model.generate(start, attention_mask=torch.ones_like(start), do_sample=False, max_new_tokens=count)
    return tokenizer.decode(said[0, start.shape[1] :]), sample(Config(), trained, PROMPT, count, 0.0)
