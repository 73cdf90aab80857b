"""What cannot be trained as a module of the user's own is refused in one line, before ranks meet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from forked import REPOSITORY

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch import embedded
from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.modules import look
from holdfast.trainer.modules.stage import open_module
from holdfast.trainer.run.preflight import check_job
from holdfast.trainer.settings.errors import ConfigError

MODELS = REPOSITORY / "tests" / "trainer" / "support" / "own_models.py"
OWN = ["--model", f"{MODELS}:net"]
PIECES = ["--dp", "2", "--set", "optim.reduce_pieces=1", "--set", "optim.state=host", "--set", "parallel.zero=0"]
PIECES += ["--set", "optim.clip_norm=0"]


@pytest.mark.parametrize(
    ("argv", "world", "says"),
    [
        (["--model", "my.module:"], 1, "module.build is 'my.module:': write MODULE:FUNCTION, as my_model:build"),
        (["--model", "my module:build"], 1, "write MODULE:FUNCTION"),
        ([*OWN, "--set", "train.activations=host", "--set", "train.activation_bytes=1000"], 1, "blocks of our layers"),
        (
            [*OWN, *PIECES],
            2,
            "optim.reduce_pieces updates tables before your module's ties are summed",
        ),
        ([*OWN, "--set", "memory.policy=chunks", "--set", "train.micro_batches=1"], 1, "holds layers of ours"),
        ([*OWN, "--pp", "2", "--set", "parallel.stage_layers=[1, 2]"], 2, "stage_layers counts our layers"),
        (["--model", "my_module.py"], 1, "or PATH.py:FUNCTION"),
        (["--set", "module.balance=parameters"], 1, "set module.build too"),
        ([*OWN, "--set", "model.layers=2"], 1, "model.layers is set with module.build"),
        ([*OWN, "--tp", "2"], 2, "set parallel.tp = 1, and pp or dp instead"),
        ([*OWN, "--pp", "2", "--set", "parallel.stage_tp=[1, 2]"], 3, "tp splits layers of ours"),
        ([*OWN, "--set", "parallel.sequence=true"], 1, "leave it at false"),
        ([*OWN, "--set", "parallel.shard_vocabulary=true"], 1, "parallel.shard_vocabulary is for ranks that share"),
        ([*OWN, "--set", "parallel.overlap_chunks=2"], 1, "parallel.overlap_chunks is for ranks that share"),
        ([*OWN, "--set", "parallel.sub_batches=2"], 1, "leave it at 1"),
        ([*OWN, "--dp", "2", "--zero", "3"], 2, "set parallel.zero to 2 or less"),
        ([*OWN, "--dp", "2", "--set", "parallel.partial_backward=2"], 2, "parallel.partial_backward counts our layers"),
        ([*OWN, "--pp", "2", "--schedule", "chimera-halving"], 2, "cuts micro-batches, and your module is for whole"),
        ([*OWN, "--set", "train.recompute=full"], 1, "set none, or cell for whole stages"),
        ([*OWN, "--set", "train.recompute=stage-aware"], 1, "train.recompute = stage-aware is for our layers"),
        ([*OWN, "--optimizer", "dp-kfac", "--zero", "0"], 1, "set adamw, lamb or sgd"),
        ([*OWN, "--set", "train.memory_path=x"], 1, "leave it out"),
        ([*OWN, "--set", "train.start_from=x"], 1, "load your own in the function"),
    ],
)
def test_settings_of_layers_are_refused(argv: list[str], world: int, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        check_job(parse(argv), world)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["--sample=x", "--export-hf=x"])
def test_what_is_for_the_transformer_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="they are for the transformer"):
        parse([*OWN, word, "--store", "file:///nowhere"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("branching", "branches on data"),
        ("normed", "its forward changes norm.num_batches_tracked, which no checkpoint would have: use what needs no"),
        (
            "alike",
            "it can be cut into 3 stages, not into 4; layer.bias is read in many places, which have to be in one stage",
        ),
        ("pair", "its forward returns tuple without logits: return a tensor (batch, seq, vocabulary)"),
        ("words", "its forward returns dict without logits"),
        ("narrow", "for tokens (2, 8) its logits are (2, 8, 100), and must be (2, 8, 256 or more)"),
        ("scalar", "its logits are (), and must be (2, 8, 256 or more)"),
        ("raising", "the function raised RuntimeError: no weights"),
        ("leaving", "the function raised SystemExit: 3"),
        ("number", "the function returned int, not an nn.Module"),
        ("untrained", "the module has no parameter to train"),
        ("no_function", "no_function is int, not a function"),
        ("missing", "own_models.py has no missing; its function returns your nn.Module"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused(name: str, says: str) -> None:
    config = parse(["--model", f"{MODELS}:{name}", "--set", "data.seq_len=8"])
    stages = 4 if name == "alike" else 1
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        open_module(config, stages, torch.device("cpu"))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"module.build = {MODELS}:{name}: ")


def test_places_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unwell_model.py").write_text("import not_there_at_all\n")
    for where, says in (
        ("gone/model.py", "no such file gone/model.py"),
        (
            "no_such_model_anywhere",
            "cannot be imported (ModuleNotFoundError: No module named 'no_such_model_anywhere')",
        ),
        ("unwell_model", "cannot be imported (ModuleNotFoundError: No module named 'not_there_at_all')"),
    ):
        with pytest.raises(ConfigError, match=re.escape(says)):
            open_module(parse(["--model", f"{where}:build"]), 1, torch.device("cpu"))


def test_the_command_says_it_in_one_line(capsys: pytest.CaptureFixture[str], text: Path) -> None:
    assert main(["--model", f"{MODELS}:raising", "--data", str(text)]) == 2
    said = capsys.readouterr().err
    assert said == f"holdfast train: module.build = {MODELS}:raising: the function raised RuntimeError: no weights\n"


def test_a_launcher_looks_before_it_starts_anything() -> None:
    with pytest.raises(UsageError, match="branches on data"):
        embedded.check(["--model", f"{MODELS}:branching", "--pp", "2"], 2, here=True)
    embedded.check(["--model", f"{MODELS}:branching", "--pp", "2"], 2, here=False)


def test_a_launcher_outlives_what_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        assert how["timeout"] == look.DEADLINE_S
        return subprocess.CompletedProcess(command, -11, "", "Fatal Python error: Segmentation fault\n")

    monkeypatch.setattr(subprocess, "run", died)
    with pytest.raises(ConfigError, match=r"ended by SIGSEGV \(Fatal Python error: Segmentation fault\)$"):
        look.look(parse(OWN), 2)
