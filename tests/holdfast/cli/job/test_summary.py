"""The last lines of `holdfast run`: figures, incidents, risk, and the health as the controller gave it."""

from holdfast.cli.job.summary import summary
from tests.holdfast.support.fake_controller import INCIDENT, health_as, job_as

RISK = {"worker": 0.0, "node": 2.0, "job": 75.0}


def test_a_finished_job() -> None:
    job = job_as("finished", step=9, health=health_as("finished", "Finished after 10 steps and 1 restart."), restarts=1,
                 generation=2)  # fmt: skip
    assert summary(job, [INCIDENT], RISK) == [
        "10 of 10 steps, 1 restart, 2 generations, loss 2.5000",
        "goodput 97.0% of 12 s: productive 9.00 s, unsaved 0.50 s, queued 2.00 s, restore 0.50 s",
        "incident i1: worker-killed on rank3, seen after 0.02 s, training again after 1.50 s, restart, "
        "state from memory",
        "a fault shortly before the end would have cost: node 2.00 s, job 1 min 15 s of work",
        "job train finished after 10 steps and 1 restart.",
    ]


def test_a_failed_job_ends_with_its_health_and_the_next_action() -> None:
    health = health_as(
        "failed",
        "Failed: rank 1 on node0 failed: ValueError: no token. 3 steps after the newest checkpoint (step 4) are lost.",
        needs_person=True,
        action="Correct the cause and start the job again; it resumes after step 4.",
    )
    lines = summary(job_as("failed", reason="the job has used its 3 restarts", health=health), [], None)
    assert lines[-4:] == [
        "no incidents",
        "the reason: the job has used its 3 restarts",
        f"job train failed: {health['sentence'].removeprefix('Failed: ')}",
        f"next: {health['action']}",
    ]
    assert "would have cost" not in " ".join(lines)


def test_of_many_incidents_the_newest_are_shown_in_the_order_of_time() -> None:
    lines = summary(job_as("finished"), [INCIDENT | {"id": f"i{n}"} for n in range(25, 0, -1)], None)
    shown = [line.split()[1].rstrip(":") for line in lines if line.startswith("incident ")]
    assert shown == [f"i{n}" for n in range(16, 26)]
    assert "15 earlier incidents" in lines


def test_before_any_step_there_is_no_time_to_show() -> None:
    job = job_as("stopped", step=-1, loss=None, max_steps=None, time=None, goodput=None, health=health_as(
        "stopped", "Stopped after step -1: by hand"))  # fmt: skip
    assert summary(job, [], None) == [
        "0 steps, 0 restarts, 1 generation", "no incidents", "job train stopped after step -1: by hand",
    ]  # fmt: skip


def test_what_an_agent_says_of_its_node_is_shown_whole() -> None:
    said = INCIDENT | {"kind": "agent", "action": "alert", "summary": "node0: --preload: broken; workers start without"}
    assert "incident i1: agent on node0: --preload: broken; workers start without" in summary(
        job_as("finished"), [said], None
    )


def test_the_newest_hint_comes_once_after_the_incidents() -> None:
    hint = "imports took 8.1 of 9.4 s of this recovery: --preload lightning would save most of it"
    incidents = [INCIDENT | {"id": f"i{n}", "hint": f"{hint} {n}" if n < 3 else None} for n in (3, 2, 1)]
    lines = summary(job_as("finished"), incidents, None)
    assert [line for line in lines if "hint" in line] == [f"hint: {hint} 2"]
    assert lines.index(f"hint: {hint} 2") == max(i for i, line in enumerate(lines) if line.startswith("incident ")) + 1


def test_steps_of_which_only_the_number_is_known_are_no_steps_of_the_job() -> None:
    lines = summary(job_as("finished", step=60, step_of_life=39, max_steps=100), [], None)
    assert lines[0].startswith("61 steps in all attempts (40 of this life), 0 restarts")


def test_a_drill_that_did_not_take_place_is_named() -> None:
    lines = summary(job_as("finished", faults_left=["kill@16:rank2"]), [], None)
    assert lines[lines.index("no incidents") + 1] == "not injected: kill@16:rank2"
