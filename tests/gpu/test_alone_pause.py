"""An unmodified script whose GPU works for long without a step is not ended. Nothing else may use the GPU: its power
says that it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import acted_on
from tests.gpu import agent_jobs as jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


def test_an_evaluation_and_a_long_kernel_are_pauses(tmp_path: Path, free_port: int) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    print()
    with LocalCluster(tmp_path / "state", controller_flags=jobs.FLAGS) as cluster:
        jobs.submit(cluster, folder, "pause", 1, free_port)
        pauses = jobs.Pauses(cluster)
        job = pauses.follow(lambda job: job.get("state") not in ("starting", "running"), folder, 75)
        incidents = jobs.report(cluster)
        print("job:", {key: job.get(key) for key in ("state", "generation", "restarts", "step", "time")})
    print("pauses:", *pauses.seen, sep="\n  ")
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 1, 0)
    assert not acted_on(incidents)
    kinds = {kind for begun, kind, _, _ in pauses.seen if begun == "evaluation"}
    assert "busy" in kinds, "an evaluation by its GPU's power"
