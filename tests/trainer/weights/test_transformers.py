"""Exported models as Hugging Face's own library loads them: the same logits, the same text, the same tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
from theirs import continuations, difference, tokenizer_of

from holdfast.trainer.data.tokens import BpeTokenizer, ByteTokenizer
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.settings.config import Config, DataConfig, ModelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.weights.hugging_face import export
from holdfast.trainer.weights.weights import Trained

pytestmark = pytest.mark.aside

SMALL = ModelConfig(layers=2, d_model=32, heads=4)
GPT = replace(SMALL, block="serial", norm="layer", positions="learned")
LLAMA = replace(SMALL, block="serial", mlp="swiglu")
MODELS = {
    "demo": (SMALL, "PhiForCausalLM"),
    "demo, tied, shared keys": (replace(SMALL, tied=True, kv_heads=2, ffn_width=48), "PhiForCausalLM"),
    "parallel GPT": (replace(SMALL, norm="layer", rope_theta=500.0), "PhiForCausalLM"),
    "Llama": (replace(LLAMA, kv_heads=2, ffn_width=48), "LlamaForCausalLM"),
    "Llama without gates": (replace(LLAMA, mlp="gelu", tied=True, norm_eps=1e-3), "ArceeForCausalLM"),
    "GPT": (GPT, "GPT2LMHeadModel"),
    "GPT, tied, shared keys": (replace(GPT, tied=True, kv_heads=1), "GPT2LMHeadModel"),
}


@pytest.fixture(autouse=True)
def alone() -> None:
    torch.set_num_threads(1)


def random(model: ModelConfig, vocab: int = 256) -> Trained:
    """A model none of whose numbers is that of a fresh one."""
    seq_len, generator = 48, torch.Generator().manual_seed(3)
    layout = TrainerLayout(pp=1, dp=1, tp=1, chunks=1, local_micro_batches=1)
    config = Config(model=model, data=DataConfig(seq_len=seq_len))
    weights = {
        held.name: torch.randn(held.shape, generator=generator) * 0.2 + ("norm.weight" in held.name)
        for held in held_by(config, layout, vocab, 0)
    }
    return Trained(1, model, "bytes", seq_len, weights)


def written(folder: Path, trained: Trained, file_bytes: int = 5 * 10**9) -> Path:
    export(folder, trained.model, 256, trained.seq_len, trained.weights, ByteTokenizer(), file_bytes)
    return folder


@pytest.mark.parametrize(("model", "name"), MODELS.values(), ids=MODELS)
def test_transformers_computes_the_same(tmp_path: Path, model: ModelConfig, name: str) -> None:
    trained = random(model)
    folder = written(tmp_path / "out", trained)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [name]
    assert difference(folder, trained) < 1e-5
    theirs, ours = continuations(folder, trained, 24)
    assert theirs == ours
    assert ours


def test_one_wrong_number_is_seen(tmp_path: Path) -> None:
    trained = random(SMALL)
    folder = written(tmp_path / "out", trained)
    trained.weights["layers.1.outward.weight"][3, 5] += 0.1
    assert difference(folder, trained) > 1e-4


def test_large_models_are_several_files(tmp_path: Path) -> None:
    trained = random(SMALL)
    folder = written(tmp_path / "out", trained, 50_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert files == {path.name for path in folder.glob("*.safetensors")}
    assert {path.stat().st_mode for path in folder.glob("*")} == {(folder / "config.json").stat().st_mode}
    assert difference(folder, trained) < 1e-5


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (replace(LLAMA, window=8), "model.window = 8; the nearest, LlamaForCausalLM, needs model.window = 0"),
        (
            replace(SMALL, mlp="swiglu"),
            "model.block = parallel; the nearest, LlamaForCausalLM, needs model.bl",
        ),
        (
            replace(SMALL, positions="learned"),
            "positions = learned; the nearest, PhiForCausalLM, needs model.pos",
        ),
    ],
)
def test_a_model_that_no_architecture_computes_is_refused(tmp_path: Path, model: ModelConfig, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path / "out", random(model))
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()


TEXTS = ["hello  world\n\t", "Āé漢字😀", "a\0b", "", " x", "<|end|>", "".join(map(chr, range(1, 0xD800, 7)))]


def test_bytes_are_the_tokens_that_the_trainer_feeds(tmp_path: Path) -> None:
    folder = written(tmp_path / "out", random(SMALL))
    theirs = tokenizer_of(folder, model_max_length=10**6)
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert (len(theirs), theirs.bos_token_id, theirs.eos_token_id) == (256, 0, 0)
    for text in TEXTS:
        fed = ByteTokenizer().encode(text.encode()).tolist()
        assert theirs.encode(text) == plain.encode(text).ids == fed
        assert theirs.decode(fed) == plain.decode(fed, skip_special_tokens=False) == text
    every = list(range(256))
    assert theirs.decode(every) == ByteTokenizer().decode(every)


def test_pairs_are_the_tokens_that_the_trainer_feeds(tmp_path: Path) -> None:
    ours = BpeTokenizer.train([b"one sheep and two goats\n" * 50], 300)
    trained = random(SMALL, 300)
    export(tmp_path / "out", SMALL, 300, trained.seq_len, trained.weights, ours)
    theirs = tokenizer_of(tmp_path / "out", model_max_length=10**6)
    assert theirs.eos_token_id == theirs.bos_token_id == 0
    for text in (*TEXTS, "two sheep"):
        fed = ours.encode(text.encode()).tolist()
        assert theirs.encode(text) == fed
        assert theirs.decode(fed) == text
    assert len(theirs.encode("two sheep")) < len("two sheep")


def test_without_a_tokenizer_there_is_the_model_alone(tmp_path: Path) -> None:
    trained = random(SMALL)
    export(tmp_path / "out", SMALL, 256, trained.seq_len, trained.weights, None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
