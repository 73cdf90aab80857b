"""The parallel sizes that a job declares: as given, or of the embedded trainer's settings."""

from __future__ import annotations

import pytest

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch.parallel import check_parallel, declared, parse_parallel
from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main

TRAINER = ["--pp", "2", "--set", "train.micro_batches=4", "--set", "model.layers=4"]


def test_sizes_as_given() -> None:
    assert parse_parallel("pp=4,dp=2, tp=1") == {"pp": 4, "dp": 2, "tp": 1}
    assert parse_parallel("") == {}
    check_parallel({"pp": 4, "dp": 2}, 8)
    check_parallel({"pp": 4}, 8)
    check_parallel({}, 7)


@pytest.mark.parametrize("text", ["pp", "pp=0", "ep=2", "pp=two", "pp=2;dp=2", "pp=-1", ",", f"pp={1 << 21}"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match=r"--parallel .*pp=4,dp=2,tp=1"):
        parse_parallel(text)


def test_twice_and_not_the_product() -> None:
    with pytest.raises(UsageError, match="gives pp twice"):
        parse_parallel("pp=2,pp=2")
    for sizes in ({"pp": 3}, {"pp": 2, "dp": 2}, {"tp": 16}):
        with pytest.raises(UsageError, match="8 workers: the product of pp, dp and tp is their number"):
            check_parallel(sizes, 8)


def test_the_trainers_own_settings() -> None:
    found = declared({}, TRAINER, (4, 4), True)
    assert found["parallel"] == {"pp": 2, "tp": 1}
    # Activations of 4 micro-batches forward and their gradients back, in float32: pp of two has one crossing.
    from holdfast.trainer.__main__ import parse_all

    config, _ = parse_all(TRAINER)
    tokens = config.train.micro_batch_size * config.data.seq_len
    assert found["step_bytes"]["pp"] >= 2 * 4 * tokens * config.model.d_model * 4
    assert found["step_bytes"]["dp"] > 0
    assert found["step_bytes"]["tp"] == 0
    assert declared({"dp": 4}, TRAINER, (4, 4), True) == {"parallel": {"dp": 4}}
    assert declared({}, None, (4, 4), True) == {}
    assert declared({}, TRAINER, (4, 5), True) == {}  # 5 workers are no two stages
    assert declared({}, [*TRAINER, "--set", "parallel.stage_tp=[1,2]"], (3, 3), True) == {}
    assert declared({}, ["--help"], (4, 4), True) == {}


def test_refused_before_a_cluster_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def start(self: LocalCluster, *args: object, **kwargs: object) -> None:
        raise AssertionError("a cluster was about to start")

    monkeypatch.setattr(LocalCluster, "__init__", start)
    monkeypatch.setenv("HOLDFAST_CONTROLLER", "")
    assert main(["run", "--nproc-per-node", "4", "--parallel", "pp=3", __file__]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--parallel pp=3 are not the sizes of 4 workers" in said
