"""What health is judged by comes from the brain as it is: in training, in recovery, after failure, and from blame."""

from pathlib import Path

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.shell.blame_watch import BlameWatch, JobBlame
from holdfast.controller.shell.extras import Extras
from holdfast.controller.shell.health_facts import facts, health_doc
from holdfast.controller.shell.job_report import job_doc
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual

DAY = 86400.0
CERTIFICATES = {"authority": 1_000_100 + 400 * DAY, "node1": 1_000_100 + 90 * DAY, "elsewhere": 1_000_100.0}
"""When they end; a run of `Virtual` begins at this time."""
BLAME = {
    "culprits": [
        {"rank": 6, "peer": -1, "node": "node1", "share": 0.1, "text": "rank 6 is slow", "by_design": False},
        {"rank": 0, "peer": -1, "node": "node0", "share": 0.25, "text": "rank 0 is slow", "by_design": True},
    ],
}


def training() -> Virtual:
    v = Virtual()
    v.submit(max_steps=1000)
    v.run(5.0)
    return v


def of(v: Virtual, blame: dict[str, object] | None = None) -> dict[str, object]:
    brain = v.brain.jobs.newest
    return health_doc(brain, job_doc(brain, v.instant), blame, v.instant, CERTIFICATES)


def test_who_is_slow_by_design_is_left_out() -> None:
    v = training()
    brain = v.brain.jobs.newest
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).slow == ()
    (slow,) = facts(brain, job_doc(brain, v.instant), BLAME, v.instant).slow
    assert (slow.rank, slow.node, slow.cost) == (6, "node1", 0.1)


def test_a_job_that_recovers_names_its_culprit_until_its_first_new_step() -> None:
    v = training()
    v.exit(3, signal=9)
    found = of(v)
    assert found["condition"] == "recovering"
    assert "rank 3" in str(found["sentence"])
    basis = found["basis"]
    assert isinstance(basis, list)
    assert basis[0] == "incident i1, worker-killed"
    assert basis[1].endswith("certificates valid for 90 d")
    v.run(5.0)
    brain = v.brain.jobs.newest
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).live is None


def test_only_recoveries_say_how_long_one_takes() -> None:
    v = training()
    brain = v.brain.jobs.newest
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).usual_recovery is None
    v.exit(3, signal=9)
    v.run(5.0)
    took = facts(brain, job_doc(brain, v.instant), None, v.instant).usual_recovery
    assert took is not None
    incident = brain.c.book.own()[-1]
    assert incident.closed is not None
    assert took == incident.closed - incident.opened
    incident.generation_to = 0  # as an alert, which is over at once
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).usual_recovery is None


def test_a_restart_from_step_0_says_how_many_steps_it_lost() -> None:
    v = training()
    assert v.job.best_step > 3
    lost = v.job.best_step + 1
    v.exit(3, signal=9)
    v.run(5.0)
    brain = v.brain.jobs.newest
    assert v.job.generation == 2
    found = facts(brain, job_doc(brain, v.instant), None, v.instant)
    resumed = brain.c.job.life_first
    assert found.repeated == (lost if resumed == 0 else 0)
    brain.c.job.life_first = 0
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).repeated == lost
    whole = of(v)
    others = whole["others"]
    assert isinstance(others, list)
    (said,) = [one for one in (whole, *others) if f"lost all {lost} steps" in one["sentence"]]
    assert said["needs_person"] is True
    brain.c.job.life_first = 2
    assert facts(brain, job_doc(brain, v.instant), None, v.instant).repeated == 0


def test_a_failed_job_names_the_incident_that_ended_it() -> None:
    v = training()
    for _ in range(4):
        if not v.job.state.ended:
            v.exit(0, code=1, error="Traceback (most recent call last):\nValueError: bad batch\n")
            v.run(1.0)
    found = of(v)
    assert found["condition"] == "failed"
    assert "ValueError: bad batch" in str(found["sentence"])
    assert found["needs_person"] is True


def test_what_blame_found_of_an_earlier_generation_is_not_of_now(tmp_path: Path) -> None:

    shell = make_shell(tmp_path, training().brain)
    watch = BlameWatch(shell, Tuning())
    assert watch.found_now("j1", 1) is None
    known = watch._jobs["j1"] = JobBlame(Extras("j1"))
    known.found, known.found_in = BLAME, 1
    assert watch.found_now("j1", 1) is BLAME
    assert watch.found_now("j1", 2) is None
    assert watch.found("j1") is BLAME, "the page still shows it"
    shell.journal.close()
