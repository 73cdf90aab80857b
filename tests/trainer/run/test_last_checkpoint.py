"""`holdfast train` when its last checkpoint cannot be stored: tried again, then an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from holdfast.trainer.__main__ import NOT_STORED


def test_a_store_that_is_gone_at_the_end(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    argv = [*tiny, "--store", f"file://{mount}/store", "--checkpoint-every", "0", "--steps", "4"]
    argv += ["--set", "checkpoint.timeout_s=1", "--set", "model.layers=1"]
    done = zygote.run("unmounted", 2, tmp_path / "run", args={"argv": argv, "step": 2, "mount": str(mount)})
    assert done["exits"] == [0, 0]
    assert [result["code"] for result in done["results"]] == [NOT_STORED] * 2
    said = done["results"][0]["stderr"]
    assert said.count("checkpoint of step 4 failed") == 1
    assert "all 4 steps are done, but" in said


def test_the_code_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.trainer.__main__ import main

    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"{NOT_STORED} all steps are done" in " ".join(capsys.readouterr().out.split())
