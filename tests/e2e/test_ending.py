"""A script that is finished on all ranks is finished, also where an agent is not there any more to say so."""

import signal
from pathlib import Path

import pytest

from tests.e2e.daemons import Commands, Json, plain_get, ready, wait_for
from tests.e2e.test_bad_input import PORTS_0

pytestmark = [pytest.mark.slow, pytest.mark.calm]
SCRIPT = """
import os, sys, time
open(f"began-{os.environ['RANK']}", "w").close()
while not os.path.exists("end"):
    time.sleep(0.05)
open(f"done-{os.environ['RANK']}-{time.time_ns()}", "w").close()
"""


def test_an_agent_that_is_killed_for_good_keeps_no_finished_job_open(holdfast: Commands, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "controller"))
    controller = holdfast.start("controller", *PORTS_0, *state, "--agent-grace", "6", "--hang-floor", "60")
    rpc, http = ready(controller)
    agents = []
    for name in ("node0", "node1"):
        flags = ("--controller", rpc, "--node-name", name, "--no-warm", "--slots", "1")
        agents.append(holdfast.start("agent", *flags, "--state-dir", str(tmp_path / name)))
        agents[-1].says("controller.joined")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = holdfast.start("run", "--controller", http, "--nnodes", "2", str(script), cwd=tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2, 60, lambda: run.err)
    wait_for(lambda: plain_get(f"http://{http}/api/v1/job").json()["state"] == "running")
    job: Json = plain_get(f"http://{http}/api/v1/job").json()
    killed = next(part["node"] for part in job["assignment"] if part["ranks"] == [1])
    agent = agents[int(killed[-1])]
    agent.signal(signal.SIGKILL)
    agent.wait(30)
    (tmp_path / "end").touch()  # before that rank 1 had not ended, so nobody has reported it
    assert run.wait(60) == 0, run.err[-3000:]
    job = plain_get(f"http://{http}/api/v1/job").json()
    assert (job["state"], job["exit_code"], job["generation"]) == ("finished", 0, 1)
    assert f"1 of 2 did not report: the agent of {killed} never reconnected" in job["reason"]
    assert sorted(path.name.split("-")[1] for path in tmp_path.glob("done-*")) == ["0", "1"]  # each once
