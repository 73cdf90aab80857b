"""`holdfast train` when its last checkpoint cannot be stored: tried again, then an exit code of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.trainer.__main__ import NOT_STORED
from tests.conftest import Until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


def start(argv: list[str], err: Path, **env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast.trainer", *argv]
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **env}
    with open(err, "wb") as opened:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=opened, env=inherited)


def test_a_store_that_is_gone_at_the_end(tiny: list[str], tmp_path: Path, free_port: int, until: Until) -> None:
    mount, away, err, metrics = (tmp_path / name for name in ("mount", "away", "err", "metrics"))
    mount.mkdir()
    store = ["--store", f"file://{mount}/store", "--checkpoint-every", "0", "--steps", "300"]
    argv = [*tiny, *store, "--set", "checkpoint.timeout_s=1", "--set", "model.layers=1"]
    argv += ["--set", f"train.metrics_path={metrics}"]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    ranks = [start(argv, err if rank == 0 else tmp_path / "other", RANK=str(rank), LOCAL_RANK=str(rank), **place)
             for rank in range(2)]  # fmt: skip
    try:
        until(lambda: metrics.exists() and b"\n" in metrics.read_bytes(), 120)  # the store is claimed, steps are done
        mount.rename(away)
        mount.touch()  # a file where the folder was: nothing can be read or written there
        until(lambda: "checkpoint of step 300 failed" in err.read_text(), 120)
        assert [rank.wait(120) for rank in ranks] == [NOT_STORED] * 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    said = err.read_text()
    assert said.count("checkpoint of step 300 failed") == 1
    assert "Traceback" not in said
    assert "all 300 steps are done, but" in said


def test_the_code_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.trainer.__main__ import main

    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"{NOT_STORED} all steps are done" in " ".join(capsys.readouterr().out.split())
