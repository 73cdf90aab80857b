"""torchrun's options on a cluster of real daemons: files, filters, programs that are no Python, signals."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, one_line, wait_for
from tests.e2e.test_run import WARM_S, Runs, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

START_S = 3.0
"""A Python worker without a step is taken for dead after so long."""

SPEAKS = """
import os, sys, time
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("loss", rank, os.environ["ROLE_NAME"])
print("warning", rank, file=sys.stderr)
if attempt == 0 and rank == "0":
    open("spoken", "w").close()
    time.sleep(60)
while not os.path.exists("spoken"):
    time.sleep(0.02)
raise SystemExit(9 if attempt == 0 else 0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    flags = ("--hang-limit-start", f"{START_S:g}s")
    # Torch is for the rendezvous store, which would import it anew for each job. Nothing here needs more of it.
    lean = ("--preload", "torch")
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(folder, nodes=1, slots=2, controller_flags=flags, agent_flags=lean) as one:
        yield one


@pytest.fixture
def runs(holdfast: Commands, cluster: LocalCluster) -> Runs:
    return Runs(holdfast, cluster)


def test_files_of_the_output(runs: Runs, tmp_path: Path) -> None:
    flags = ["--nproc-per-node", "2", "-t", "0:3", "-r", "1:1", "--log-dir", "logs", "--role", "trainer"]
    flags += ["--duplicate_stdout_filters", "loss"]
    run = runs.start(*flags, script(tmp_path, SPEAKS), cwd=tmp_path)
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    job = str(runs.ask("job")["id"])
    found = {str(path.relative_to(tmp_path / "logs")): path.read_text() for path in tmp_path.glob("logs/**/*.log")}
    expected = {}
    for attempt in ("attempt_0", "attempt_1"):
        expected[f"{job}_0/{attempt}/0/stdout.log"] = "loss 0 trainer\n"
        expected[f"{job}_0/{attempt}/0/stderr.log"] = "warning 0\n"
        expected[f"{job}_0/{attempt}/1/stdout.log"] = "loss 1 trainer\n"
        expected[f"{job}/{attempt}/filtered_stdout.log"] = "loss 0 trainer\n"
    assert found == expected
    # Rank 1's standard output went to its file only, and its standard error to the console only.
    assert run.out == "[0] loss 0 trainer\n" * 2
    assert run.err.count("[1] warning 1\n") == 2
    assert f"files of the workers: {tmp_path}/logs/{job}_GROUP/" in run.err


def test_some_local_ranks_on_the_console(runs: Runs, tmp_path: Path) -> None:
    path = script(tmp_path, "import os\nprint('rank', os.environ['RANK'])\n")
    run = runs.start("--nproc-per-node", "2", "--local_ranks_filter=1", path)
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    assert run.out == "[1] rank 1\n"


def test_a_folder_that_cannot_be_written_ends_the_job_with_the_reason(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = runs.start("--tee", "3", "--log-dir", str(tmp_path / "file"), script(tmp_path, "print(1)\n"))
    assert run.wait(WARM_S) == 1
    failed, following = run.err.splitlines()[-2:]
    assert "failed: node0: --log-dir: cannot write" in failed, run.err[-4000:]
    assert following.startswith("holdfast: next: Correct the cause")


def test_a_program_that_is_no_python(runs: Runs, tmp_path: Path) -> None:
    """It reports no steps, and is not taken for dead: it outlives the limit before a first step."""
    code = f'echo rank $RANK of $WORLD_SIZE: "$1"; sleep {START_S + 2:g}; exit 5'
    run = runs.start("--nproc-per-node", "2", "--no-python", "--max-restarts", "0", "sh", "-c", code, "x", "a b")
    assert run.wait(WARM_S) == 5, run.err[-4000:]
    assert sorted(run.out.splitlines()) == ["[0] rank 0 of 2: a b", "[1] rank 1 of 2: a b"]
    assert runs.ask("job")["generation"] == 1
    run = runs.start("--no-python", "--max-restarts", "0", "no-such-program")
    assert run.wait(WARM_S) == 2
    assert "cannot execute 'no-such-program'" in run.err


def test_signals_and_the_time_to_end(runs: Runs, tmp_path: Path) -> None:
    code = """
    import signal, time
    def end(*_):
        print("ending", flush=True)
        time.sleep(60)
    signal.signal(signal.SIGTERM, end)
    print("up", flush=True)
    while True: time.sleep(1)
    """
    flags = ("--signals-to-handle", "SIGUSR1", "--shutdown-timeout", "1")
    run = runs.start(*flags, script(tmp_path, code))
    run.says("[0] up", WARM_S)
    run.signal(signal.SIGUSR1)
    assert run.wait(30) == 128 + signal.SIGUSR1
    assert "[0] ending" in run.out
    wait_for(lambda: runs.ask("job")["state"] == "stopped")


def test_a_node_rank_is_refused(runs: Runs, tmp_path: Path) -> None:
    run = runs.start("--node-rank", "1", script(tmp_path, "print(1)\n"))
    assert run.wait() == 2
    assert "the command is given once" in one_line(run.err)
