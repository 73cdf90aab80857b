"""The submitter's environment reaches the workers, also after restarts, and its values are in no other place."""

import hashlib
import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.cli.local.cluster import LocalCluster
from holdfast.controller.shell.environments import FOLDER
from tests.e2e.daemons import Commands, wait_for
from tests.e2e.test_launch import kill_controller
from tests.e2e.test_run import WARM_S, Runs, script, worker

pytestmark = [pytest.mark.slow, pytest.mark.calm, pytest.mark.timeout(240)]

SECRET = "sesame-9f3c"
WAITS = """
import hashlib, os, time
value = os.environ.get("TRACKER_KEY", "")
print("digest", hashlib.sha256(value.encode()).hexdigest(), "gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while not os.path.exists("end"):
    time.sleep(0.05)
raise SystemExit(0)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    flags = ("--hang-floor", "5s", "--record", str(tmp_path / "recording.jsonl"))
    with LocalCluster(
        tmp_path / "cluster", nodes=1, slots=2, controller_flags=flags, agent_flags=("--verbose", "--preload", "")
    ) as one:
        yield one


@pytest.fixture
def runs(holdfast: Commands, cluster: LocalCluster) -> Runs:
    return Runs(holdfast, cluster)


def holders(folder: Path) -> list[Path]:
    """Files with the secret in them: state, journal, recording, logs of daemons and workers, and what `run` printed."""
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in content(path)]


def content(path: Path) -> bytes:
    """Nothing of a file that was there for a moment only, as those that take another's place."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def answers(cluster: LocalCluster, job: str) -> dict[str, str]:
    """What every path of the API that can be read says, and the page with its files."""
    found = {}
    with httpx.Client(base_url=cluster.url, timeout=10.0) as http:
        schema: dict[str, Any] = http.get("/openapi.json").json()
        for path in [p for p, methods in schema["paths"].items() if "get" in methods]:
            named = path.replace("{id}", job).replace("{name}", "node0").replace("{incident}", "i1")
            if named.endswith(("/events", "/logs")):
                with http.stream("GET", named, timeout=5.0) as stream:
                    found[named] = first_lines(stream)
            else:
                found[named] = http.get(named).text
        found["/"] = http.get("/").text
        found["/metrics"] = http.get("/metrics").text
    assert len(found) > 25
    return found


def first_lines(stream: httpx.Response) -> str:
    text, end = "", time.monotonic() + 2.0
    try:
        for line in stream.iter_lines():
            text += line + "\n"
            if time.monotonic() > end:
                break
    except httpx.ReadTimeout:
        pass
    return text


def test_a_secret_reaches_the_workers_and_nothing_else(runs: Runs, cluster: LocalCluster, tmp_path: Path) -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    shell = {"TRACKER_KEY": SECRET, "CUDA_VISIBLE_DEVICES": "7"}
    place = tmp_path / "work"
    place.mkdir()
    run = runs.start("--nproc-per-node", "2", script(place, WAITS), env=shell, cwd=place)
    for rank in (0, 1):
        run.says(f"[{rank}] digest {digest} gpus None", WARM_S)
    [job] = cluster.client.jobs()
    path = cluster.state_dir / "controller" / FOLDER / f"{job['id']}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["TRACKER_KEY"] == SECRET

    # The controller is killed and forgets; then a worker is: those of the next generation have it again.
    kill_controller(cluster)
    os.kill(worker(cluster, 1), signal.SIGKILL)
    wait_for(lambda: run.out.count(digest) == 4, 60, lambda: run.out + run.err)

    leaks = [path for path, text in answers(cluster, str(job["id"])).items() if SECRET in text]
    assert leaks == []
    assert holders(tmp_path) == [path]
    assert SECRET not in run.out + run.err
    (place / "end").touch()
    assert run.wait(60) == 0, run.err[-4000:]
    wait_for(lambda: not path.exists())
    assert holders(tmp_path) == []
    assert (tmp_path / "recording.jsonl").stat().st_size > 0
