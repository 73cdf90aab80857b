"""The trainer with its checkpoints in a real HDFS: what breaks there costs a checkpoint, never the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from tests.checkpoint.support.hdfs_cluster import BLOCK_BYTES, HdfsCluster

pytestmark = pytest.mark.slow
SETTINGS = ["model.layers=4", "model.d_model=128", "train.micro_batches=2"]
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_full_hdfs_costs_checkpoints_and_not_the_run(
    hdfs: HdfsCluster, zygote: Zygote, tiny: list[str], tmp_path: Path, scheme: str
) -> None:
    from hdfs_native import Client

    url = f"{hdfs.url if scheme == 'hdfs' else hdfs.web_url}/{scheme}/checkpoints"
    argv = [*tiny, *SMALL, "--store", url, "--checkpoint-every", "1"]

    def run(generation: int, steps: int, *layout: str, code: int = 0) -> str:
        words = [*argv, *layout, "--steps", str(steps)]
        done = zygote.run("command", 2, tmp_path / "run", args={"argv": words}, generation=generation)
        assert [result["code"] for result in done["results"]] == [code, code]
        return str(done["results"][0]["stderr"])

    assert run(0, 2, "--tp", "2") == ""
    # Room for a claim, whose file takes a block on two DataNodes while it is written, and not for a part of several.
    used = Client(hdfs.url).get_content_summary(f"/{scheme}").space_consumed
    hdfs.admin("-setSpaceQuota", str(used + 3 * BLOCK_BYTES), f"/{scheme}")
    # The last state is not in the store, for which it tries as long as its timeout.
    said = run(1, 4, "--dp", "2", "--set", "checkpoint.timeout_s=10", code=74).splitlines()
    hdfs.admin("-clrSpaceQuota", f"/{scheme}")
    assert len(said) == 3
    assert "all 4 steps are done, but" in said[2]
    for step, line in zip((3, 4), said, strict=False):
        assert line.startswith(f"holdfast train: checkpoint of step {step} failed: ")
        assert "quota" in line
        assert line.endswith("; last good: step 2")
    assert run(2, 5, "--pp", "2") == ""
    assert [info.step for info in list_checkpoints(url)] == [5, 4, 3]
    assert verify(url, 5) == []
