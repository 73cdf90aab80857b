"""Limits of a pause as flags of `holdfast run`, and what `probe.phase` says of one: real processes from end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, Json, acted_on, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.calm, pytest.mark.timeout(240)]

SCRIPTS = Path(__file__).parent / "scripts"
ENDED_S = 150.0
"""The first job waits for torch's import, on a machine that may be busy with other tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Steps of 50 ms on a machine that other tests keep busy: a second without a step means nothing here.
    patient = ("--hang-floor", "3s")
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, slots=2, controller_flags=patient) as one:
        yield one


class Paused:
    """One job in which rank 1 pauses once, followed to its end."""

    def __init__(self, holdfast: Commands, cluster: LocalCluster, flags: list[str], *words: str) -> None:
        client = cluster.client
        before = len(acted_on(client.incidents()))
        script = [str(SCRIPTS / "pausing.py"), *words]
        run = holdfast.start("run", "--controller", cluster.http, "--nproc-per-node", "2", *flags, *script)
        assert run.wait(ENDED_S) == 0, run.err[-4000:]
        self.err = run.err
        job = client.job()
        assert job is not None
        self.restarts = job["restarts"]
        wait_for(lambda: not client.status()["open_incidents"])
        newest = acted_on(client.incidents())
        self.ended = list(reversed(newest[: len(newest) - before]))
        """Incidents, in order."""

    @property
    def verdict(self) -> Json:
        """The one that ended the pause."""
        (incident,) = self.ended
        assert (incident["kind"], incident["culprit"], self.restarts) == ("worker-hang", "rank1", 1), incident
        found: Json = incident["findings"][0]
        return found


@pytest.fixture
def mark(tmp_path: Path) -> str:
    return str(tmp_path / "mark")


@pytest.mark.parametrize(
    ("flag", "seconds", "how", "life"),
    [("--idle-limit", 4, "quiet", "idle"), ("--pause-limit", 6, "loop", "busy")],
)
def test_a_limit_given_to_run_ends_the_pause(
    holdfast: Commands, cluster: LocalCluster, mark: str, flag: str, seconds: int, how: str, life: str
) -> None:
    paused = Paused(holdfast, cluster, [f"{flag}={seconds}s"], "train", how, "0", mark)
    found = paused.verdict
    assert f"the limit of {seconds} s ({flag})" in found["text"]
    evidence = found["evidence"]
    assert (evidence["life"], evidence["option"], evidence["limit_s"]) == (life, flag, seconds)
    assert seconds <= evidence["still_s"] < 45  # without the flag: 60 s and 30 minutes


def test_a_phase_of_its_own_gets_the_limit_of_what_makes_no_steps(
    holdfast: Commands, cluster: LocalCluster, mark: str
) -> None:
    """Quietly, and for longer than the idle limit: a rank that trains is ended, one that evaluates is not."""
    flags = ["--idle-limit", "4s"]
    evaluates = Paused(holdfast, cluster, flags, "eval", "quiet", "9", mark)
    assert (evaluates.ended, evaluates.restarts) == ([], 0)
    trains = Paused(holdfast, cluster, flags, "train", "quiet", "30", f"{mark}2")
    assert trains.verdict["evidence"]["option"] == "--idle-limit"


def test_a_phase_of_its_own_has_a_limit_too(holdfast: Commands, cluster: LocalCluster, mark: str) -> None:
    flags = ["--idle-limit", "3s", "--idle-limit-start", "8s"]
    found = Paused(holdfast, cluster, flags, "eval", "quiet", "0", mark).verdict
    assert (found["evidence"]["option"], found["evidence"]["limit_s"]) == ("--idle-limit-start", 8)
    assert found["evidence"]["still_s"] >= 8


def test_code_that_reports_its_place_in_a_mesh_is_not_dead_between_operations(
    holdfast: Commands, cluster: LocalCluster, mark: str
) -> None:
    for phase in ("eval", "train"):
        paused = Paused(holdfast, cluster, [], phase, "quiet", "9", f"{mark}{phase}", "mesh")
        assert (paused.ended, paused.restarts) == ([], 0)
