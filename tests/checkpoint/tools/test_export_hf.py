"""`holdfast checkpoint export --to hf`: from stores of the trainer, from imported ones, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import find
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.tools.convert import write_whole
from holdfast.checkpoint.worker.torch_state import dtype_name, of_local
from holdfast.cli.main import main
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.settings.config import Config, DataConfig, ModelConfig
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.weights.state import settings

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is:UserWarning")

CONFIG = Config(model=ModelConfig(layers=2, d_model=32, heads=4), data=DataConfig(seq_len=16))
TOML = "[model]\nlayers = 2\nd_model = 32\nheads = 4\n[data]\nseq_len = 16\n"
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def weights_of(config: Config, vocab: int = 256) -> dict[str, Tensor]:
    layout, generator = TrainerLayout(pp=1, dp=1, tp=1, chunks=1, local_micro_batches=1), torch.Generator()
    return {held.name: torch.randn(held.shape, generator=generator) for held in held_by(config, layout, vocab, 0)}


def stored(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    store, whole = FileStore(folder), {}
    for name, tensor in tensors.items():
        place = GlobalTensor(name, tuple(tensor.shape), dtype_name(tensor.dtype))
        whole[name] = of_local(place, place.shard, tensor)
    write_whole(store, 20, whole, state, {"optimizer.applied": 20})
    return store.url


@pytest.fixture
def trained(tmp_path: Path) -> str:
    return stored(tmp_path / "store", weights_of(CONFIG), settings(CONFIG, 7))


@pytest.fixture
def foreign(tmp_path: Path, capsys: Capture) -> str:
    """A store made of a DCP checkpoint of another program, which knows the tensors alone."""
    dcp.save(dict(weights_of(CONFIG)), checkpoint_id=tmp_path / "dcp", no_dist=True)
    url = (tmp_path / "imported").as_uri()
    assert main(["checkpoint", "import", str(tmp_path / "dcp"), url, "--step", "20"]) == 0
    capsys.readouterr()
    return url


def export(url: str, folder: Path, *more: str) -> int:
    return main(["checkpoint", "export", url, str(folder), "--to", "hf", *more])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_has_model_and_tokenizer(trained: str, tmp_path: Path, capsys: Capture) -> None:
    assert export(trained, tmp_path / "out", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"step": 20, "folder": str(tmp_path / "out"), "format": "hf"}
    assert said.err == ""
    assert sorted(contents(tmp_path / "out")) == FILES


def test_by_way_of_dcp_it_is_the_same_folder(trained: str, tmp_path: Path) -> None:
    assert main(["checkpoint", "export", trained, str(tmp_path / "dcp"), "--to", "dcp"]) == 0
    other = (tmp_path / "other").as_uri()
    assert main(["checkpoint", "import", str(tmp_path / "dcp"), other, "--step", "20"]) == 0
    (_, before), (_, after) = find(FileStore(tmp_path / "store")), find(FileStore(tmp_path / "other"))
    assert after.state == before.state
    assert after.values == before.values == {"optimizer.applied": 20}
    assert (export(trained, tmp_path / "one"), export(other, tmp_path / "two")) == (0, 0)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_settings_that_are_not_there_are_given(foreign: str, trained: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    assert export(foreign, tmp_path / "one", "--config", str(tmp_path / "run.toml")) == 0
    # What a checkpoint says itself is not overruled.
    (tmp_path / "other.toml").write_text("[model]\nlayers = 3\n")
    assert export(trained, tmp_path / "two", "--config", str(tmp_path / "other.toml")) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert capsys.readouterr().err == ""


def test_pairs_need_the_text_that_they_come_from(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one sheep and two goats\n" * 100)
    data = DataConfig(str(tmp_path / "text"), tokenizer="bpe:300", seq_len=16, cache_dir=str(tmp_path / "cache"))
    config = replace(CONFIG, data=data)
    url = stored(tmp_path / "store", weights_of(config, 300), settings(config, open_corpus(data).digest))
    assert export(url, tmp_path / "alone") == 0
    assert "no tokenizer files: for those of bpe:300, name the settings of its run" in capsys.readouterr().err
    assert sorted(contents(tmp_path / "alone")) == FILES[:2]

    run = tmp_path / "run.toml"
    run.write_text(
        f"[data]\npath = '{data.path}'\ntokenizer = 'bpe:300'\nseq_len = 16\ncache_dir = '{data.cache_dir}'\n"
    )
    assert export(url, tmp_path / "whole", "--config", str(run)) == 0
    assert sorted(contents(tmp_path / "whole")) == FILES
    assert capsys.readouterr().err == ""
    (tmp_path / "text" / "b.txt").write_text("a wolf\n")
    assert export(url, tmp_path / "changed", "--config", str(run)) == 2
    assert "is not the text that bpe:300 was trained on" in capsys.readouterr().err
    assert not (tmp_path / "changed").exists()


@pytest.mark.parametrize(
    ("changed", "lost", "says"),
    [
        ({"model.window": 8}, "", "model.window = 8; the nearest, PhiForCausalLM, needs model.window = 0"),
        ({"model.mlp": "relu"}, "", "model.mlp = relu; the nearest, PhiForCausalLM, needs model.mlp = gelu"),
        ({"model.layers": "2"}, "", "its layers is '2'"),
        ({"model.layers": -1}, "", "model.layers is -1: must be 1 or more"),
        ({"data.tokenizer": "words"}, "", "data.tokenizer is 'words'"),
        ({"model.d_model": 64}, "", "has embed.weight as [256, 32], by its settings it is [256, 64]"),
        ({}, "layers.1.inward.weight", "has no layers.1.inward.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_settings_is_refused(
    tmp_path: Path, capsys: Capture, changed: dict[str, Any], lost: str, says: str
) -> None:
    tensors = {name: tensor for name, tensor in weights_of(CONFIG).items() if name != lost}
    url = stored(tmp_path / "store", tensors, {**settings(CONFIG, 7), **changed})
    refused(capsys, export(url, tmp_path / "out"), says)
    assert not (tmp_path / "out").exists()


def refused(capsys: Capture, code: int, says: str) -> None:
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    assert says in said.err


def test_bad_input_is_one_line(foreign: str, trained: str, tmp_path: Path, capsys: Capture) -> None:
    out, run = tmp_path / "out", tmp_path / "run.toml"
    refused(capsys, export(foreign, out), "it has no setting 'model.layers'; name a file with the settings of its run")
    run.write_text(TOML.replace("32", "64"))
    refused(capsys, export(foreign, out, "--config", str(run)), "has embed.weight as [256, 32]")
    run.write_text("[model]\nlayer = 2\n")
    refused(capsys, export(foreign, out, "--config", str(run)), "unknown key model.layer")
    refused(capsys, export(foreign, out, "--config", str(tmp_path / "none")), "none")
    words = ["checkpoint", "export", trained, str(out), "--to", "dcp", "--config", str(run)]
    refused(capsys, main(words), "--config goes with --to hf")
    (tmp_path / "stores" / "one").mkdir(parents=True)
    refused(capsys, export((tmp_path / "stores").as_uri(), out), "is no checkpoint store")
    refused(capsys, export((tmp_path / "gone").as_uri(), out), "there is no such folder")
    refused(capsys, export(trained, tmp_path / "stores"), "is not empty: name a new folder")
    for place in (run, run / "below"):
        refused(capsys, export(trained, place), f"{run} is no folder that can be written")
    assert not out.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"state": {}}', '{"state": [], "values": {}}', '{"state": {"x": NaN}, "values": {}}', "[" * 9**6],
)
def test_notes_that_are_damaged_are_refused(foreign: str, tmp_path: Path, capsys: Capture, text: str) -> None:
    (tmp_path / "dcp" / "holdfast.json").write_text(text)
    new = (tmp_path / "new").as_uri()
    refused(capsys, main(["checkpoint", "import", str(tmp_path / "dcp"), new, "--step", "1"]), "holdfast.json is not")
    assert not (tmp_path / "new").exists()
