"""`holdfast plan`: a table, JSON, settings that the trainer takes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.planner.packets import questions
from holdfast.trainer.__main__ import parse_all
from holdfast.trainer.settings.layout import plan, vocab_of
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.planned import planned_of
from holdfast.trainer.settings.written import written

Capture = pytest.CaptureFixture[str]
CLUSTER = 'gpu = "A100"\nnodes = 2\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = 200\n'
MODEL = (
    "--set",
    "model.layers=6",
    "--set",
    "model.kv_heads=4",
    "--set",
    "train.micro_batches=12",
    "--set",
    "optim.lr=0.25",
)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return ["plan", *MODEL, "--cluster", str(tmp_path / "cluster.toml")]


def test_the_best_are_printed_and_the_first_is_written_as_settings(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    best = tmp_path / "best.toml"
    picture = tmp_path / "best.svg"
    assert main([*words, "--json", "-o", str(best), "--draw", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] is True
    times = [one["step_s"] for one in found["layouts"]]
    assert times == sorted(times)
    assert len(times) == 10
    first = found["layouts"][0]
    axes = ", ".join(f"{axis} {first['layout'][axis]}" for axis in ("pp", "dp", "tp"))
    assert f"{axes}, {first['layout']['schedule']} on 8 A100</title>" in picture.read_text()
    assert sum(first["breakdown_s"].values()) == pytest.approx(first["step_s"])
    config, _ = parse_all(["--config", str(best)])
    layout = plan(config, 8, vocab_of(config.data.tokenizer))
    assert (layout.pp, layout.dp, layout.tp) == tuple(first["layout"][axis] for axis in ("pp", "dp", "tp"))
    assert (config.model.layers, config.model.kv_heads, config.optim.lr) == (6, 4, 0.25)
    assert config.train.micro_batches * config.train.micro_batch_size == 24
    assert load(best) == config
    planned, why = planned_of(config, 8, "NVIDIA A100-SXM4-80GB")
    assert why == ""
    assert planned is not None
    assert planned.step == first["step_s"], "what the run is compared with"
    assert len(planned.forward) == first["layout"]["pp"] * max(1, first["layout"]["chunks"])
    assert main(words) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if first["layout"]["schedule"] in line or "%" in line]) >= 10
    assert "no other layout is better" in out


def test_what_a_change_of_the_network_costs(words: list[str], capsys: Capture) -> None:
    questions = ("leaf:1", "middle:0:2", "order:dp-tp-pp", "connections:4", "flap:8s", "flap:8s:14:7")
    asked = [word for question in questions for word in ("--what-if", question)]
    assert main([*words, "--json", *asked]) == 0
    now, leaf, middle, *_, survived, lost = json.loads(capsys.readouterr().out)["what_if"]
    assert now["question"] == "as it is"
    assert now["cut_off"] == 0 == middle["cut_off"]
    assert leaf["cut_off"] > 0
    assert survived["ends_s"] > 8
    assert lost["ends_s"] is None
    assert main([*words, *asked]) == 0
    out = capsys.readouterr().out
    assert "are cut off: the job stops" in out
    assert "InfiniBand gives up after 0.47 s: the job fails" in out


def test_what_senders_that_meet_make_of_a_rack(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "SLOTS", 200)
    assert main([*words, "--json", "--what-if", "incast:4"]) == 0
    incast = json.loads(capsys.readouterr().out)["what_if"][1]
    assert incast["question"] == "incast:4"
    assert list(incast["controls"]) == ["none", "dcqcn", "swift", "both"]
    assert incast["controls"]["none"]["goodput"] == 1
    assert main([*words, "--what-if", "incast:4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "none: 100.0% of the NIC" in out
    assert "both: " in out


def test_the_least_memory_is_another_goal(words: list[str], capsys: Capture) -> None:
    found = []
    for goal in ("time", "memory"):
        assert main([*words, "--json", "--goal", goal]) == 0
        found.append(json.loads(capsys.readouterr().out)["layouts"][0])
    assert sum(found[1]["memory_bytes"].values()) < sum(found[0]["memory_bytes"].values())
    assert found[1]["step_s"] > found[0]["step_s"]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--goal", "speed"], "--goal is 'speed': write time or memory"),
        (["--seconds", "0"], "--seconds is 0: must be above 0"),
        (["--idle-nodes", "-1"], "--idle-nodes is -1"),
        (["--schedules", "1f1b,fast"], "schedules 'fast' is not known"),
        (["--limit", "1KB"], "no layout fits in 1e-06 GB a device"),
        (
            [word for key in ("model.layers", "model.heads", "model.kv_heads") for word in ("--set", f"{key}=1")],
            "no layout has 24 samples in a step on 20 devices",
        ),
        (["--cluster", "/nowhere.toml"], "/nowhere.toml"),
        (["-o", "/nowhere/best.toml"], "the folder /nowhere does not exist"),
        (["--draw", "/nowhere/best.svg"], "--draw is /nowhere/best.svg: the folder /nowhere does not exist"),
        (["--draw", "/tmp"], "--draw is /tmp, a folder: name a file in it"),
        (["--set", "model.layers=0"], "model.layers"),
        (["--limit", "x"], "--limit must be a size such as 80GB, not 'x'"),
        (["--what-if", "huh"], "--what-if 'huh' is no question: write one of leaf:N"),
        (["--what-if", "leaf:4"], "lowest switch 4: there are 0 to 3"),
        (["--what-if", "incast:0"], "--what-if 'incast:0': write incast:SENDERS, with 1 to 62 NICs"),
        (["--what-if", "leaf:x"], "'x' is no number"),
        (["--what-if", "flap:soon"], "'soon' is no time"),
        (["--what-if", "flap:8s:99"], "NCCL_IB_TIMEOUT is 1 to 31"),
        (["--what-if", "order:tp"], "order of ranks 'tp'"),
        (["--set", "parallel.stage_layers=[3,3]", "--set", "parallel.pp=2"], "parallel.stage_layers is set"),
        (
            ["--set", "train.activations=host", "--set", "train.activation_bytes=9"],
            "train.activations = host is chosen here",
        ),
        (["--sample", "x"], "takes settings only"),
    ],
)
def test_what_can_not_be_is_one_line(words: list[str], more: list[str], line: str, capsys: Capture) -> None:
    if "20 devices" in line:
        Path(words[words.index("--cluster") + 1]).write_text(CLUSTER.replace("nodes = 2", "nodes = 5"))
    assert main([*words, *more]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_settings_are_written_as_they_are_read(tmp_path: Path) -> None:
    config = load(
        None,
        [
            ("data.path", 'a "quoted" \\ path\x7f\n \U0001f600 \u00e9'),
            ("data.suffixes", [".py", ".md"]),
            ("parallel.stage_tp", [1, 2]),
            ("parallel.pp", 2),
            ("optim.lr", 1e-7),
            ("parallel.sequence", False),
            ("train.deterministic", False),
        ],
    )
    (tmp_path / "all.toml").write_text(written(config))
    assert load(tmp_path / "all.toml") == config
    assert written(load(None, [])) == "\n"


def test_what_does_not_fit_may_be_in_host_memory(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    """Under a limit that no layout keeps with all on the device; the settings are the trainer's."""
    cluster, best = Path(words[words.index("--cluster") + 1]), tmp_path / "best.toml"
    words = [*words, "--set", "model.d_model=2048", "--schedules", "1f1b", "--limit", "450MB"]
    assert main(words) == 2
    assert "no layout fits in 0.45 GB" in capsys.readouterr().err
    assert main([*words, "--host"]) == 2
    assert "give the cluster [host]" in capsys.readouterr().err
    cluster.write_text(CLUSTER + "[host]\nmemory_bytes = 1e11\nbytes_per_s = 2.5e10\n")
    assert main([*words, "--host", "-o", str(best)]) == 0
    out = capsys.readouterr().out
    assert "states" in out or "chunks" in out
    config = load(best)
    assert config.optim.state == "host" or config.memory.policy == "chunks"
    assert config.transport.networks == "one"
    plan(config, 8, vocab_of(config.data.tokenizer))


UNLIKE = """gpu = "A100"
gpus_per_node = 4
[links.switch]
gbit_per_s = 200
[links.pod]
gbit_per_s = 200
""" + "".join(
    f'[[group]]\nnic = "{nic}"\nnodes = 1\nspeed = {speed}\nethernet_gbit_per_s = 25\n'
    for nic, speed in (("roce", 1), ("infiniband", 2), ("roce", 1), ("infiniband", 2))
)


def test_unlike_nics_get_groups_of_one_type_and_layers_by_speed(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    Path(words[words.index("--cluster") + 1]).write_text(UNLIKE)
    best, large = tmp_path / "best.toml", ("--set", "model.layers=12", "--set", "model.d_model=1024")
    only = ("--schedules", "1f1b", "-o", str(best), *large)
    assert main([*words, *only, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["layouts"][0]["layout"]
    assert 8 % (first["dp"] * first["tp"]) == 0
    config, _ = parse_all(["--config", str(best)])
    assert config.parallel.stage_layers == tuple(first["stage_layers"])
    assert config.transport.networks == "by-nic"
    layout = plan(config, 16, vocab_of(config.data.tokenizer))
    layers = [len(layout.layers_of(stage, 12)) for stage in range(layout.stages)]
    assert sum(layers[: layout.pp // 2]) < sum(layers[layout.pp // 2 :])
    nics = found["nics"]
    assert [(one["nic"], one["nodes"]) for one in nics["blocks"]] == [
        ("roce", ["node0", "node2"]), ("infiniband", ["node1", "node3"])
    ]  # fmt: skip
    assert nics["boundaries"] == 1
    assert set(nics["networks"]["dp"]) | set(nics["networks"]["tp"]) == {"IB"}
    assert main([*words, *only]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ranks 0 to 7 on node0, node2 (roce), ranks 8 to 15 on node1, node3 (infiniband)" in out
    assert "no group of dp or tp spans types of NIC" in out
