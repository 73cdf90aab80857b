"""`holdfast run` and `demo` check the embedded trainer's settings in place of its workers."""

from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.cli.demo import demo
from holdfast.cli.job.launch import embedded
from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main


def test_a_file_that_only_the_workers_have_is_theirs_to_check(tmp_path: Path) -> None:
    gone = ["--config", str(tmp_path / "gone.toml"), "--tp", "3"]
    embedded.check(gone, 3, here=False)
    with pytest.raises(UsageError, match=r"gone\.toml"):
        embedded.check(gone, 3, here=True)


@pytest.mark.parametrize("args", [["--help"], ["--import-hf", "/gone"]])
def test_what_needs_more_than_the_settings_is_left_to_the_workers(args: list[str]) -> None:
    embedded.check(args, 1, here=True)


def test_no_layout_is_needed_for_what_is_done_instead_of_training() -> None:
    embedded.check(["--traffic", "--tp", "3"], 1, here=True)


class Started(Exception):
    """A cluster was about to start."""


@pytest.fixture
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: LocalCluster, *args: object, **kwargs: object) -> None:
        raise Started

    monkeypatch.setattr(LocalCluster, "__init__", start)
    monkeypatch.delenv("HOLDFAST_CONTROLLER", raising=False)
    monkeypatch.setattr("holdfast.cli.job.run._answers", lambda client, must: False)  # other tests may have one there


@pytest.mark.usefixtures("_no_cluster")
@pytest.mark.parametrize("module", embedded.MODULES)
def test_run_refuses_before_it_starts_a_cluster(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "--nproc-per-node", "3", "-m", module, "--tp", "3"]
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(Started):
        main([*argv[:-1], "1", "--set", "train.micro_batches=3"])


@pytest.mark.usefixtures("_no_cluster")
def test_demo_refuses_before_it_starts_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = demo.job_spec

    def wrong(*args: object) -> object:
        found = spec(*args)  # type: ignore[arg-type]
        found["program"]["args"] += ["--set", "model.heads=3"]
        return found

    monkeypatch.setattr(demo, "job_spec", wrong)
    assert main(["demo", "--nodes", "1", "--nproc", "2"]) == 2
    assert "model.d_model is 128 with 3 heads" in capsys.readouterr().err
