"""Settings: what is read, precedence, and that every mistake is named with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch, from_environment, keep_loopback_local
from holdfast.trainer.settings.layout import factorisations, plan, vocab_of
from holdfast.trainer.settings.load import load, parse_override
from holdfast.trainer.settings.models import MODELS


def test_defaults_without_arguments() -> None:
    assert parse([]) == Config()


def test_flags_outrank_overrides_outrank_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[train]\nsteps = 1\nseed = 1\nmicro_batches = 2\n[optim]\nlr = 1\n")
    config = parse(["--config", str(path), "--set", "train.seed=2", "--set", "train.steps=2", "--steps", "3"])
    assert (config.train.steps, config.train.seed, config.train.micro_batches) == (3, 2, 2)
    assert config.optim.lr == 1.0


def test_the_schedule_has_a_flag() -> None:
    assert parse(["--pp", "4", "--schedule", "chimera"]).parallel.schedule == "chimera"


def test_overrides_read_toml_and_plain_words() -> None:
    assert parse_override('data.suffixes=[".md"]') == ("data.suffixes", [".md"])
    assert parse_override("parallel.schedule=gpipe") == ("parallel.schedule", "gpipe")
    assert parse_override("data.path=/a=b") == ("data.path", "/a=b")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--set", "train.setps=3"], "unknown key train.setps in the command line: did you mean steps?"),
        (["--set", "trian.steps=3"], "unknown section [trian] in the command line: did you mean train?"),
        (["--set", "steps=3"], "write section.key=value"),
        (["--set", "train.steps"], "write section.key=value"),
        (["--set", "train.steps=many"], "train.steps in the command line is 'many': write a whole number"),
        (["--set", "parallel.schedule=zigzag"], "choose one of 1f1b, eager-1f1b, gpipe, interleaved, bfs, zbv"),
        (["--set", "model.dropout=1.0"], "must be from 0 to below 1"),
        (["--set", "checkpoint.restore=1"], "write true or false"),
        (["--set", "data.suffixes=3"], "write a list of strings"),
        (["--set", "data.tokenizer=bpe:3"], "write bytes, or bpe:N"),
        (["--set", "model.heads=5"], "model.d_model is 128 with 5 heads: must be a multiple of 2 x heads, as 130"),
        (["--set", "model.kv_heads=3"], "model.kv_heads is 3 with 8 heads: must divide them, as 2"),
        (["--set", "model.ffn_width=100"], "model.ffn_width is 100 with 8 key-value heads: must be a multiple, as 96"),
        (["--set", "model.norm=batch"], "model.norm in the command line is 'batch': choose one of rms, layer"),
        (["--set", "model.positions=sine"], "choose one of rope, learned"),
        (["--set", "model.mlp=relu"], "choose one of gelu, swiglu"),
        (["--data", "~nobody-has-this-name/x"], "data.path ~nobody-has-this-name/x: nobody's home folder is known"),
        (["--data", "no\x1b[31m\nway"], "data.path no\\x1b[31m way: no such folder"),
        (["--set", "model.window=-1"], "model.window is -1: must be 0 or more"),
        (["--set", "model.tied=yes"], "model.tied in the command line is 'yes': write true or false"),
        (["--set", "model.norm_eps=0"], "model.norm_eps is 0.0: must be above 0"),
        (["--set", "model.rope_theta=-1"], "model.rope_theta is -1.0: must be above 0"),
        (["--set", "train.dtype=int8"], "choose one of float32, bfloat16, float64"),
        (["--set", "train.recompute=some"], "train.recompute is 'some': write none, selective, full, cell, or one for"),
        (["--set", "train.recompute=stage-aware,none"], "or one for each stage; or stage-aware"),
        (["--set", "train.recompute=full,none"], "train.recompute has 2 entries for 1 stages: one for all, or one for"),
        (["--set", "train.on_nonfinite=ignore"], "choose one of stop, skip"),
        (["--set", "train.max_skips=-1"], "train.max_skips is -1: must be 0 or more"),
        (["--set", "optim.name=adam"], "choose one of adamw, lamb, sgd"),
        (["--set", "optim.decay=step"], "choose one of cosine, linear, constant"),
        (["--set", "optim.beta2=1.0"], "optim.beta2 is 1.0: must be from 0 to below 1"),
        (["--set", "optim.momentum=1.5"], "optim.momentum is 1.5: must be from 0 to below 1"),
        (["--set", "optim.decay_steps=5"], "optim.decay_steps is 5: must be above optim.warmup_steps = 10, or 0"),
        (
            ["--set", "optim.trust_low=2.0", "--set", "optim.trust_high=1.0"],
            "optim.trust_low is 2.0, above optim.trust_high = 1.0",
        ),
        (["--steps", "0"], "train.steps is 0: must be 1 or more"),
        (["--steps", "x"], "invalid int value"),
        (["--stpes", "3"], "unrecognized arguments: --stpes"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
        (["--tp", "3"], "nearest that works: pp=1 dp=1 tp=1"),
        (["--data", "/nowhere"], "data.path /nowhere: no such folder"),
        (["--store", "s3://h/p"], "no such scheme 's3'; use file:///path"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    argv: list[str], says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("holdfast train: ")
    assert err.count("\n") == 1
    assert says in err


def test_unreadable_toml(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[train\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: .*TOML"):
        load(path)


def test_stages_have_the_layers_that_are_given() -> None:
    config = load(
        overrides=[
            *{"model.layers": 9, "parallel.pp": 2, "parallel.schedule": "interleaved"}.items(),
            ("parallel.stage_layers", [4, 1, 2, 2]),
        ]
    )
    layout = plan(config, 2, 256)
    assert [list(layout.layers_of(stage, 9)) for stage in range(4)] == [[0, 1, 2, 3], [4], [5, 6], [7, 8]]


def test_every_factorisation_of_eight_has_a_plan() -> None:
    assert len(list(factorisations(8))) == 10
    for pp, dp, tp in factorisations(8):
        config = load(overrides=[("model.layers", 8), ("parallel.pp", pp), ("parallel.dp", dp), ("parallel.tp", tp)])
        layout = plan(config, 8, 256)
        coordinates = [layout.coordinate(rank) for rank in range(8)]
        assert coordinates == [(p, d, t) for p in range(pp) for d in range(dp) for t in range(tp)]
        stages = [stage for p in range(pp) for stage in layout.stages_of(p)]
        layers = [n for stage in sorted(stages) for n in layout.layers_of(stage, 8)]
        assert layers == list(range(8))
        assert [m for d in range(dp) for m in layout.micro_batches_of(d)] == list(range(8))


@pytest.mark.parametrize(
    ("settings", "world", "says"),
    [
        ({"parallel.pp": 2, "parallel.dp": 2}, 8, "pp x dp x tp is 4, the world size is 8"),
        ({"parallel.tp": 16}, 16, "model.heads = 8 is not divisible by tp"),
        ({"parallel.tp": 4, "model.kv_heads": 2}, 4, "model.kv_heads = 2 is not divisible by tp"),
        (
            {"parallel.tp": 4, "parallel.sequence": True, "data.seq_len": 30},
            4,
            "data.seq_len = 30 is not divisible by tp (or set parallel.sequence = false)",
        ),
        ({"parallel.pp": 2, "train.recompute": "full,none,none"}, 2, "train.recompute has 3 entries for 2 stages"),
        (
            {"parallel.pp": 2, "train.recompute": "cell", "parallel.schedule": "merak"},
            2,
            "recomputes whole stages already",
        ),
        (
            {"parallel.pp": 2, "train.recompute": "stage-aware", "parallel.schedule": "merak-early"},
            2,
            "merak-early recomputes whole stages already (choose 1f1b)",
        ),
        (
            {"parallel.pp": 2, "train.recompute": "none,cell", "parallel.schedule": "axonn"},
            2,
            "axonn has none (set full)",
        ),
        ({"parallel.pp": 8}, 8, "model.layers = 4 are fewer than 8 stages"),
        ({"train.micro_batches": 6}, 4, "train.micro_batches = 6 is not divisible by dp"),
        ({"parallel.schedule": "interleaved"}, 2, "needs pp of 2 or more; nearest that works: pp=2 dp=1 tp=1"),
        ({"parallel.schedule": "zbv"}, 2, "parallel.schedule = zbv needs pp of 2 or more; nearest that works: pp=2"),
        ({"parallel.schedule": "zbv", "parallel.chunks": 3}, 2, "zbv needs parallel.chunks = 2, a way out and a way"),
        (
            {"parallel.schedule": "interleaved-zero-bubble", "parallel.pp": 2, "train.micro_batches": 5},
            2,
            "interleaved-zero-bubble needs rounds of equal size: 5 micro-batches in 2 rounds leave 1 over",
        ),
        (
            {"parallel.chunks": 2},
            1,
            "needs parallel.schedule to be one of bfs, chimera, ",
        ),
    ],
)
def test_impossible_layouts_name_reason_and_cure(settings: dict[str, int], world: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(load(overrides=settings.items()), world, 256)
    assert says in str(caught.value)


def test_dp_is_derived() -> None:
    assert plan(load(overrides=[("parallel.tp", 2)]), 8, 256).dp == 4


def test_launch_alone_and_under_a_launcher() -> None:
    assert from_environment({}) == Launch()
    torchrun = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2"}
    torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert from_environment(torchrun) == Launch(3, 8, 1, 2, "", True)
    ours = from_environment(torchrun | {"HOLDFAST_GENERATION": "5", "HOLDFAST_JOB": "j"})
    assert (ours.generation, ours.job) == (5, "j")


@pytest.mark.parametrize(
    "broken", [{"RANK": "x"}, {"RANK": "8"}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": None}, {"WORLD_SIZE": None}]
)
def test_senseless_environments_are_refused(broken: dict[str, str | None]) -> None:
    whole = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    env = {k: v for k, v in (whole | broken).items() if v is not None}
    with pytest.raises(ConfigError):
        from_environment(env)


def test_loopback_is_forced_only_for_a_loopback_rendezvous() -> None:
    for address, forced in (("127.0.0.1", True), ("localhost", True), ("10.0.0.1", False), ("node7", False)):
        env = {"MASTER_ADDR": address}
        keep_loopback_local(env)
        assert ("GLOO_SOCKET_IFNAME" in env) == forced
    env = {"MASTER_ADDR": "localhost", "GLOO_SOCKET_IFNAME": "eth0"}
    keep_loopback_local(env)
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("name", MODELS)
def test_every_published_shape_is_taken(name: str) -> None:
    config = parse(["--model", name])
    plan(config, 1, vocab_of(config.data.tokenizer))


def test_tp_divides_the_width_of_a_serial_layer() -> None:
    config = parse(["--set", "model.block=serial", "--set", "model.ffn_width=100", "--tp", "8"])
    with pytest.raises(ConfigError, match=r"model\.ffn_width = 100 is not divisible by tp"):
        plan(config, 8, 256)
