"""Weights out of checkpoints: as Hugging Face's Llama has them, back again, and as text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from forked import Zygote
from safetensors.torch import load_file
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.stores.folder import committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.cli.main import main as holdfast
from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.mesh.mesh import leave
from holdfast.trainer.weights.hugging_face import settings_of
from holdfast.trainer.weights.sample import build
from holdfast.trainer.weights.weights import newest, trained

pytestmark = pytest.mark.aside

LLAMA = ["model.block=serial", "model.mlp=swiglu", "model.heads=4", "model.kv_heads=2", "model.ffn_width=48"]
SMALL = [word for s in [*LLAMA, "model.layers=2", "train.micro_batches=4"] for word in ("--set", s)]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)  # tensors this small are slower on more, and ranks run beside us
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def llama(folder: Path, tokens: Tensor) -> Tensor:
    """Logits of a Hugging Face Llama folder, written from its description, with its names and shapes."""
    c, w = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    heads, groups, head = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def norm(x: Tensor, name: str) -> Tensor:
        return w[f"{name}.weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]))

    batch, length = tokens.shape
    inverse = 1.0 / (c["rope_theta"] ** (torch.arange(0, head, 2).double() / head))
    angles = torch.outer(torch.arange(length).double(), inverse)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1).float() for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        half = head // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        seen = norm(x, f"{base}.input_layernorm")
        q, k, v = (
            F.linear(seen, w[f"{base}.self_attn.{name}_proj.weight"]).view(batch, length, count, head).transpose(1, 2)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        k, v = (t.repeat_interleave(heads // groups, dim=1) for t in (turned(k), v))
        scores = turned(q) @ k.transpose(2, 3) / math.sqrt(head)
        scores = scores + torch.full((length, length), -torch.inf).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + F.linear(mixed, w[f"{base}.self_attn.o_proj.weight"])
        seen = norm(x, f"{base}.post_attention_layernorm")
        gate, up = (F.linear(seen, w[f"{base}.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, w[f"{base}.mlp.down_proj.weight"])
    table = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return F.linear(norm(x, "model.norm"), table)


@pytest.mark.parametrize("tied", ["false", "true"])
def test_a_llama_goes_out_and_comes_back(
    zygote: Zygote, tiny: list[str], tmp_path: Path, tied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "store")]
    argv = [*tiny, *SMALL, "--set", f"model.tied={tied}", "--dp", "2", "--tp", "2", "--steps", "3"]
    done = zygote.run("command", 4, tmp_path / "run", args={"argv": [*argv, *store]})
    assert [result["code"] for result in done["results"]] == [0] * 4

    folder = tmp_path / "llama"
    assert main([*tiny, *store, "--export-hf", str(folder)]) == 0
    assert capsys.readouterr().out == f"step 3 is in {folder}\n"
    trained = newest(str(tmp_path / "store"))
    tokens = torch.arange(32).view(2, 16)
    try:
        with torch.no_grad():
            ours = build(trained)(tokens, torch.tensor(0))
            assert torch.allclose(ours, llama(folder, tokens), rtol=0, atol=1e-5)
    finally:
        leave()

    shapes = {name: list(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == [32, 32]
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == [16, 32]
    assert shapes["model.layers.1.mlp.gate_proj.weight"] == [48, 32]
    assert ("lm_head.weight" in shapes) == (tied == "false")
    found, vocab = settings_of(folder)
    assert ({**found, "ffn_width": 48}, vocab) == ({**found, "kv_heads": 2, "tied": tied == "true"}, 256)

    # Back in another layout: the first loss is that of the weights that went out.
    more = [*tiny, "--set", "train.micro_batches=4", "--import-hf", str(folder), "--pp", "2", "--steps", "1"]
    again = zygote.run("train", 2, tmp_path / "again", args={"argv": more})
    assert again["exits"] == [0, 0]
    config = parse(more)
    batches = Batches(open_corpus(config.data).tokens, config.data.seq_len, 0, 4, 1)
    x, y = (torch.from_numpy(part) for part in batches.read(0, range(4)))
    expected = F.cross_entropy(llama(folder, x).flatten(0, 1), y.flatten())
    assert again["results"][0]["losses"][0] == pytest.approx(float(expected), abs=1e-5)


def test_training_goes_on_from_what_came_back_from_dcp(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    store, other = f"file://{tmp_path}/store", f"file://{tmp_path}/other"

    def losses(folder: str, steps: int, url: str) -> list[float]:
        argv = [*tiny, "--dp", "2", "--store", url, "--steps", str(steps)]
        done = zygote.run("train", 2, tmp_path / folder, args={"argv": argv})
        assert done["exits"] == [0, 0]
        found: list[float] = done["results"][0]["losses"]
        return found

    losses("begun", 2, store)
    assert holdfast(["checkpoint", "export", store, str(tmp_path / "dcp"), "--to", "dcp"]) == 0
    assert holdfast(["checkpoint", "import", str(tmp_path / "dcp"), other, "--step", "2"]) == 0
    there, here = losses("there", 4, other), losses("here", 4, store)
    assert len(here) == 2
    assert there == here


def test_what_transformers_does_not_compute_is_refused(
    zygote: Zygote, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*tiny, "--set", "model.window=8"]
    store = ["--store", str(tmp_path / "store")]
    done = zygote.run("command", 1, tmp_path / "run", args={"argv": [*argv, *store, "--steps", "1"]})
    assert done["results"][0]["code"] == 0
    for argv, says in (
        ([*store, "--export-hf", str(tmp_path / "out")], "needs model.window = 0: train with that, or use"),
        (["--export-hf", str(tmp_path / "out")], "--sample and --export-hf need --store"),
        (["--import-hf", str(tmp_path)], "config.json: No such file or directory; name a folder"),
        (["--sample", "x", "--temperature", "-1", *store], "--tokens and --temperature must be 0 or more"),
    ):
        assert main([*tiny, *argv]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert says in err
    assert main([*tiny, "--sample", "x", "--store", str(tmp_path / "none")]) == 1
    assert f"no checkpoint in {tmp_path}/none: train with --store first" in capsys.readouterr().err


@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_a_checkpoint_without_a_matrix_of_its_model_is_refused(
    zygote: Zygote, tiny: list[str], tmp_path: Path, block: str
) -> None:
    url, gated = str(tmp_path / "store"), ["--set", "model.mlp=swiglu", "--set", f"model.block={block}"]
    done = zygote.run("command", 1, tmp_path / "run", args={"argv": [*tiny, *gated, "--store", url, "--steps", "1"]})
    assert done["results"][0]["code"] == 0
    store = open_store(url)
    ((slot, manifest),) = committed(store)
    for name in manifest.tensors:
        if "@" in name:  # of the optimizer
            continue
        others = replace(manifest, tensors={key: value for key, value in manifest.tensors.items() if key != name})
        with pytest.raises(CheckpointError, match=f"step 1 has no {re.escape(name)}, which"):
            trained(store, slot, others)
    assert set(trained(store, slot, manifest).weights) == {name for name in manifest.tensors if "@" not in name}


def test_an_unknown_kind_of_llama_is_named(tmp_path: Path) -> None:
    good = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "vocab_size": 256,
    }
    good |= {"num_attention_heads": 4, "rms_norm_eps": 1e-6, "vocab_size": 256}
    for more, says in (
        ({"model_type": "mistral"}, "model_type is mistral, the trainer knows llama only"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope type is llama3"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"head_dim": 16}, "head_dim x num_attention_heads is 64"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(good | more))
        with pytest.raises(Exception, match=re.escape(says)):
            settings_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(good))
    assert settings_of(tmp_path)[0]["norm_eps"] == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_sample_is_text_and_repeats(
    zygote: Zygote, tiny: list[str], tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*tiny, "--store", str(tmp_path / "store"), "--set", f"data.tokenizer={tokenizer}"]
    model = ["--set", "model.layers=2", "--set", "train.dtype=bfloat16", "--set", "train.micro_batches=2"]
    done = zygote.run("command", 2, tmp_path / "run", args={"argv": [*argv, *model, "--tp", "2", "--steps", "20"]})
    assert [result["code"] for result in done["results"]] == [0, 0]
    said = []
    for more in (["--temperature", "0"], ["--seed", "1"], ["--seed", "1"], ["--seed", "2"]):
        assert main([*argv, "--sample", "line 1", "--tokens", "20", *more]) == 0
        said.append(capsys.readouterr().out)
    assert all(text.startswith("line 1") and len(text) > 20 for text in said)
    assert said[1] == said[2] != said[3]
    assert open_corpus(parse([*argv]).data).vocab == newest(str(tmp_path / "store")).weights["embed.weight"].shape[0]
