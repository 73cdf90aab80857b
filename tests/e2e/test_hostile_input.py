"""Impossible values from each source: a worker's probe, a forged stream, an edited journal."""

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.base.bounds import MAX_RANKS
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import Commands, Json, Running, commands, log_events, one_line, plain_get, ready, wait_for
from tests.e2e.test_bad_input import PORTS_0, Stream

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"
SCRIBBLING = SCRIPTS / "scribbling.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Commands, Running, Running]]:
    """A controller that has heard of the hang detector's patience, and one agent."""
    folder = tmp_path_factory.mktemp("cluster")
    with commands(folder / "commands") as all_of_it:
        flags = ("--state-dir", str(folder / "controller"), "--hang-floor", "60", "--silence-floor", "60")
        controller = all_of_it.start("controller", *PORTS_0, *flags)
        rpc, _ = ready(controller)
        agent = all_of_it.start(
            "agent", "--controller", rpc, "--no-warm", "--node-name", "node0", "--slots", "2",
            "--state-dir", str(folder / "agent"),
        )  # fmt: skip
        agent.says("controller.joined")
        yield all_of_it, controller, agent


def metric(http: str, name: str) -> float:
    text = plain_get(f"http://{http}/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


def job(http: str) -> Json | None:
    found: Json | None = plain_get(f"http://{http}/api/v1/status").json()["job"]
    return found


def incidents(http: str) -> list[Json]:
    found: list[Json] = plain_get(f"http://{http}/api/v1/incidents").json()
    return found


def test_a_probe_that_is_scribbled_over_ends_neither_agent_nor_controller(
    cluster: tuple[Commands, Running, Running], tmp_path: Path
) -> None:
    holdfast, controller, agent = cluster
    _, http = ready(controller)
    words = ("--nproc-per-node", "2", "--max-restarts", "1", str(SCRIBBLING), str(tmp_path / "asked"))
    run = holdfast.start("run", "--controller", http, *words)
    wait_for(lambda: (said := job(http)) and (said["generation"], said["state"]) == (2, "running"), 90)
    for _ in range(3):
        httpx.post(f"http://{http}/api/v1/job/stacks", trust_env=False, timeout=30).raise_for_status()
    (tmp_path / "asked").touch()
    assert run.wait(120) == 0, run.err[-3000:] + agent.err[-3000:]
    before = metric(http, "holdfast_frames_total")
    wait_for(lambda: metric(http, "holdfast_frames_total") >= before + 3)
    assert agent.process.poll() is None
    assert controller.process.poll() is None
    assert metric(http, "holdfast_controller_bugs_total") == 0
    assert metric(http, 'holdfast_ingest_malformed_total{reason="step"}') == 0  # the agent clamps what it sends
    for daemon in (agent, controller):
        assert "Traceback" not in daemon.err
        assert not [e for e in log_events(daemon.err) if e["event"].endswith((".bug", ".unsendable"))], daemon.err
    assert len([e for e in log_events(agent.err) if e["event"] == "controller.joined"]) == 1  # its stream never broke


def test_a_forged_stream_costs_itself_only(cluster: tuple[Commands, Running, Running]) -> None:
    """What ended the controller, silenced a node and stopped the journal, each as one step of a frame."""
    _, controller, _ = cluster
    rpc, http = ready(controller)
    forger = Stream(rpc)
    try:
        forger.send(wire.encode_agent(msg.Hello(t.Identity("forger", "host9", "i9", boot_id="b9"))))
        assert isinstance(forger.receive(), msg.Welcome)
        bad = [
            t.StepRecord(0, 1, 5, 0, 0.1, 1.0, 1 << 62),
            t.StepRecord(0, 1, -5, 0, 0.1),
            t.StepRecord(0, 1, 5, 0, math.nan),
        ]
        for seq in range(1, 101):
            forger.send(wire.encode_agent(t.Frame(seq, 1, 1, steps=tuple(bad))))
            notice = t.AgentNotice(1, "loop", t.Severity.WARNING, "again and again")
            forger.send(wire.encode_agent(msg.Numbered(seq, notice)))
        wait_for(lambda: metric(http, 'holdfast_ingest_malformed_total{reason="step"}') == 300)
        wait_for(lambda: metric(http, "holdfast_alerts_suppressed_total") == 99)
    finally:
        forger.close()
    incidents = plain_get(f"http://{http}/api/v1/incidents").json()
    kinds = [one["kind"] for one in incidents if one["culprit"] == "forger"]
    assert sorted(kinds) == ["agent", "alerts-suppressed", "input-refused"]
    assert controller.process.poll() is None


def test_a_damaged_journal_is_reported_and_never_a_loop(holdfast: Commands, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def begin() -> Running:
        controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(state))
        ready(controller)
        return controller

    def edit(statement: str) -> None:
        db = sqlite3.connect(state / "controller.sqlite")
        db.execute(statement)
        db.commit()
        db.close()

    begin().process.terminate()
    holdfast.running[-1].wait(30)
    edit("INSERT INTO entity VALUES ('incident', 'i7', '{', 1.0)")
    edit("""INSERT INTO entity VALUES ('node', 'node0', '{"cordoned": []}', 1.0)""")
    controller = begin()
    _, http = ready(controller)
    (incident,) = plain_get(f"http://{http}/api/v1/incidents").json()
    assert incident["kind"] == "journal-damaged"
    assert "incident i7" in incident["summary"]
    controller.process.terminate()
    controller.wait(30)
    edit("INSERT INTO entity VALUES ('job', 'j9', '{', 2.0)")
    done = holdfast.run("controller", *PORTS_0, "--state-dir", str(state))
    assert done.process.returncode == 2
    assert "the document of the newest job is damaged (j9: " in one_line(done.err)


def test_a_job_that_cannot_be_in_the_journal_is_one_line(holdfast: Commands, tmp_path: Path) -> None:
    """As a supervisor sees it: code 2, which it need not try again, whatever is wrong with the newest job."""
    state = tmp_path / "state"
    controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(state))
    _, http = ready(controller)
    submitted = {"program": {"target": "x.py"}, "nnodes": 1, "nproc_per_node": 1}
    httpx.post(f"http://{http}/api/v1/jobs", json=submitted, trust_env=False, timeout=60).raise_for_status()
    controller.process.terminate()
    controller.wait(30)
    db = sqlite3.connect(state / "controller.sqlite")
    [(key, raw)] = db.execute("SELECT id, doc FROM entity WHERE kind = 'job'").fetchall()
    for where, value in ((("spec", "nproc"), -1), (("generation",), []), (("submitted_at",), 10**400)):
        edited = inner = json.loads(raw)
        for name in where[:-1]:
            inner = inner[name]
        inner[where[-1]] = value
        db.execute("UPDATE entity SET doc = ? WHERE kind = 'job'", (json.dumps(edited),))
        db.commit()
        done = holdfast.run("controller", *PORTS_0, "--state-dir", str(state))
        assert done.process.returncode == 2, where
        line = one_line(done.err)
        assert f"the journal's newest job cannot be read (job {key}: " in line
        assert "stop the job's workers or restore the file" in line
    db.close()


def test_a_job_that_is_too_large_is_refused_in_one_line(cluster: tuple[Commands, Running, Running]) -> None:
    _, controller, _ = cluster
    _, http = ready(controller)
    for nnodes, nproc in ((MAX_RANKS + 1, 1), (10**18, 10**18)):
        job = {"program": {"target": "x.py"}, "nnodes": nnodes, "nproc_per_node": nproc}
        answer = httpx.post(f"http://{http}/api/v1/jobs", json=job, trust_env=False, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"a job has {MAX_RANKS:,} workers at most, not {nnodes} x {nproc}: ")


def test_the_largest_job_costs_bounded_memory_and_no_answers(holdfast: Commands, tmp_path: Path) -> None:
    """No nodes for it: it waits, and everything else is answered."""
    controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(tmp_path / "state"))
    _, http = ready(controller)

    def megabytes() -> float:
        text = Path(f"/proc/{controller.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")) / 1000

    before = megabytes()
    with httpx.Client(base_url=f"http://{http}", trust_env=False, timeout=60) as api:
        job = {"program": {"target": "x.py"}, "nnodes": MAX_RANKS // 8, "nproc_per_node": 8}
        api.post("/api/v1/jobs", json=job).raise_for_status()
        for _ in range(3):
            said = api.get("/api/v1/status").raise_for_status().json()
            assert (said["job"]["generation"], said["job"]["world_size"]) == (0, MAX_RANKS)
            assert megabytes() - before < 150
        again = holdfast.run("status", "--controller", http)
        assert again.process.returncode == 0, again.err
        for path in ("/metrics", "/api/v1/ranks"):
            assert api.get(path).status_code == 200
        assert megabytes() - before < 600  # 30 MB of text each
    controller.process.terminate()
    assert controller.wait(30) == 0
    controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(tmp_path / "state"))
    ready(controller)
    assert megabytes() - before < 150


def test_what_a_worker_prints_keeps_no_agent_from_speaking(
    cluster: tuple[Commands, Running, Running], tmp_path: Path
) -> None:
    """Its lines wait for their turn, and the one that matters is found after them."""
    holdfast, controller, agent = cluster
    _, http = ready(controller)
    known = {one["id"] for one in incidents(http)}
    script, is_found = str(SCRIPTS / "one_long_line.py"), tmp_path / "found"
    run = holdfast.start(
        "run", "--controller", http, "--nproc-per-node", "1", "--max-restarts", "0", script, str(is_found)
    )

    def found() -> list[tuple[str, str]]:
        ours = [one["id"] for one in incidents(http) if one["id"] not in known]
        full = [plain_get(f"http://{http}/api/v1/incidents/{name}").json() for name in ours]
        return [(each["kind"], each["text"]) for one in full for each in one["findings"]]

    wait_for(lambda: any("CUBLAS_STATUS_ALLOC_FAILED" in text for _, text in found()), 200, found)
    is_found.touch()
    assert run.wait(60) == 0, run.err[-3000:] + agent.err[-3000:]
    assert {kind for kind, _ in found()} == {"log-rule"}, found()
