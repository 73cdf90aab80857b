"""One condition leads, in one sentence that says who, since when and what it costs; and what to do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.health.facts import Facts, Fault, Pause, Slow
from holdfast.controller.health.judge import NOTHING, Condition, judge, length
from holdfast.controller.state.model import JobStatus

NOW = 10_000.0
WELL = Facts(
    NOW, JobStatus.RUNNING, since=NOW - 500, step=892, stepped_at=NOW - 1, step_seconds=2.0, world=64, nodes=8, safe=880
)
KILL = Fault("i7", "worker-killed", "rank3", "received SIGKILL", NOW - 4, "node1", "restart", "restore", NOW - 2)
SLOW = Slow(6, -1, "node1", 0.07, "rank 6 (node1): compute is 12% slower than that of its 7 peers")


def lead(facts: Facts) -> tuple[str, str, str]:
    found = judge(facts).lead
    return found.condition.value, found.sentence, found.action


@pytest.mark.parametrize(
    ("safe", "says", "again"),
    [
        (880, "12 steps after the newest checkpoint (step 880) are lost.", "it resumes after step 880"),
        (892, "No step is lost.", "it resumes after step 892"),
        (-1, "All 893 steps are lost: no checkpoint was stored.", "it starts at step 0"),
        (None, "The program reports no checkpoints: Holdfast does not know what is lost.", "its own state"),
    ],
)
def test_a_failed_job_names_its_culprit_what_is_lost_and_where_it_resumes(
    safe: int | None, says: str, again: str
) -> None:
    error = replace(KILL, kind="worker-exception", text="ValueError: bad shape")
    condition, sentence, action = lead(replace(WELL, state=JobStatus.FAILED, ended=error, safe=safe))
    assert condition == "failed"
    assert sentence == f"Failed: rank 3 on node1: ValueError: bad shape. {says}"
    assert again in action
    assert judge(replace(WELL, state=JobStatus.FAILED, ended=error)).lead.basis == ("incident i7, worker-exception",)


def test_what_there_is_for_the_next_fault_is_named_with_every_condition() -> None:
    facts = replace(WELL, spares=2, at_risk=42.0, certificates_end=WELL.now + 80 * 86400)
    assert judge(facts).lead.basis == ("2 spare nodes; 42 s of work not stored; certificates valid for 80 d",)
    assert judge(replace(WELL, spares=1, at_risk=None)).lead.basis == ("1 spare node",)
    expired = judge(replace(facts, certificates_end=WELL.now - 3 * 3600)).lead.basis
    assert expired[0].endswith("a certificate expired 3 h ago")
    stopped = judge(replace(facts, state=JobStatus.STOPPED)).lead
    assert stopped.basis == ()


@pytest.mark.parametrize("safe", [-1, None])
def test_a_restart_that_lost_all_steps_says_so_and_needs_a_person_until_a_checkpoint_is_stored(
    safe: int | None,
) -> None:
    again = replace(WELL, restarts=1, step=3, safe=safe, repeated=893)
    found = judge(again).lead
    assert (found.condition, found.is_urgent) == (Condition.AT_RISK, True)
    assert found.sentence == (
        "The restart lost all 893 steps: no checkpoint is configured. The next one loses them again."
    )
    assert "--store" in found.action
    assert judge(replace(again, safe=0)).lead.condition is Condition.WELL
    assert judge(replace(again, repeated=0)).lead.condition is Condition.WELL


def test_who_it_is_stands_once() -> None:
    error = replace(KILL, text="rank 3 (pid 7) raised ValueError: bad shape")
    assert lead(replace(WELL, state=JobStatus.FAILED, ended=error))[1].startswith(
        "Failed: on node1, rank 3 (pid 7) raised"
    )


def test_a_restarted_job_recovers_until_its_first_new_step() -> None:
    restoring = replace(WELL, live=replace(KILL, is_recovering=True), stepped_at=NOW - 60)
    assert lead(restoring)[0] == "recovering"
    assert judge(restoring).others == ()


def test_a_failed_job_without_an_incident_says_its_reason() -> None:
    facts = replace(WELL, state=JobStatus.FAILED, reason="it restarted 5 times", step=-1)
    assert lead(facts)[1] == "Failed: it restarted 5 times. No step was done."


@pytest.mark.parametrize(
    ("facts", "condition", "says", "action"),
    [
        (WELL, "well", "Training normally, at step 892, with 0 restarts so far.", NOTHING),
        (
            replace(WELL, state=JobStatus.STOPPED, reason="stopped by hand"),
            "stopped",
            "Stopped after step 892: stopped by hand",
            NOTHING,
        ),
        (
            replace(WELL, state=JobStatus.FINISHED, restarts=1),
            "finished",
            "Finished after 893 steps and 1 restart.",
            NOTHING,
        ),
        (
            replace(WELL, state=JobStatus.STARTING, since=NOW - 12),
            "starting",
            "Starting 64 ranks on 8 nodes for 12 s.",
            NOTHING,
        ),
        (
            replace(WELL, state=JobStatus.PENDING, since=NOW - 300, is_queued=True, reason="job b holds 3 nodes"),
            "waiting for nodes",
            "Waiting for nodes for 5 min: job b holds 3 nodes.",
            NOTHING,
        ),
        (
            replace(WELL, state=JobStatus.PENDING, since=NOW - 300, reason="waiting for nodes: 2 nodes are wanted"),
            "waiting for nodes",
            "Waiting for nodes for 5 min: 2 nodes are wanted.",
            "holdfast uncordon",
        ),
        (
            replace(WELL, state=JobStatus.RECOVERING, live=KILL),
            "recovering",
            "Recovering for 4 s: rank 3 on node1: received SIGKILL.",
            NOTHING,
        ),
        (replace(WELL, stepped_at=NOW - 40), "no progress", "No step for 40 s", "holdfast stacks"),
        (
            replace(WELL, pause=Pause("busy", "rank 0 writes 212 MB/s; 2 wait for it", NOW - 18, 1800.0, None)),
            "paused",
            "Paused for 18 s, busy: rank 0 writes 212 MB/s; 2 wait for it.",
            NOTHING,
        ),
        (
            replace(WELL, slow=(SLOW,)),
            "slow",
            "Rank 6 on node1 makes every step 7% longer, as much as 4 of 64 GPUs.",
            "holdfast diagnose node1",
        ),
        (
            replace(WELL, doubtful=(("node2", "suspect"),)),
            "at risk",
            "node2 (suspect); no spare could take over.",
            "holdfast nodes",
        ),
        (
            replace(WELL, live=replace(KILL, text="no frame for 3 s")),
            "at risk",
            "Training continues, but rank 3 on node1: no frame for 3 s.",
            NOTHING,
        ),
        (
            replace(
                WELL,
                at_risk=300.0,
                store=Fault(
                    "i4",
                    "store",
                    "store",
                    "checkpoints of job j1 cannot be stored: No space left on device",
                    NOW - 40,
                    "",
                    "alert",
                    "",
                    NOW - 40,
                ),
            ),
            "at risk",
            "Training continues, but for 40 s checkpoints of job j1 cannot be stored: No space left on device. "
            "The loss of all nodes would cost 5 min of work.",
            "Bring the checkpoint store back; incident i4",
        ),
        (
            replace(WELL, slow=(replace(SLOW, since=NOW - 600.0),)),
            "slow",
            "Rank 6 on node1 makes every step 7% longer, as much as 4 of 64 GPUs, for 10 min so far.",
            "holdfast diagnose node1",
        ),
        (replace(WELL, at_risk=2 * 3600.0), "at risk", "2 h of work are not stored", "holdfast checkpoint list"),
    ],
)
def test_each_condition_says_what_it_is_and_the_one_next_action(
    facts: Facts, condition: str, says: str, action: str
) -> None:
    found = lead(facts)
    assert found[0] == condition
    assert says in found[1]
    assert action in found[2]


def test_a_pause_is_no_lack_of_progress_and_noise_is_reported_nowhere() -> None:
    paused = replace(WELL, stepped_at=NOW - 400, pause=Pause("idle", "rank 0 waits for a lock", NOW - 400, None, 90.0))
    assert lead(paused)[0] == "paused"
    assert "Here it took up to 90 s before." in lead(paused)[1]
    assert lead(replace(WELL, slow=(replace(SLOW, cost=0.009),)))[0] == "well"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (JobStatus.PENDING, "Waiting for nodes for 5 min: needs 2 more."),
        (
            JobStatus.RECOVERING,
            "Waiting for nodes for 4 s: rank 3 on node1: received SIGKILL. The job needs 2 more.",
        ),
    ],
)
def test_a_job_that_lost_its_nodes_waits_since_then_and_one_that_never_had_them_since_it_was_submitted(
    state: JobStatus, says: str
) -> None:
    facts = replace(WELL, state=state, since=NOW - 300, reason="waiting for nodes: needs 2 more", live=KILL)
    assert lead(facts)[1] == says


@pytest.mark.parametrize(
    ("count", "ends"),
    [(1, "node0 (lost); "), (3, "node2 (lost); "), (4, "node2 (lost) and 1 more; "), (6, "node2 (lost) and 3 more; ")],
)
def test_of_many_nodes_in_doubt_three_are_named(count: int, ends: str) -> None:
    sentence = lead(replace(WELL, doubtful=tuple((f"node{n}", "lost") for n in range(count))))[1]
    assert sentence.endswith(f"{ends}no spare could take over.")


@pytest.mark.parametrize(
    ("others", "world", "ends"),
    [
        (0, 14, "longer."),
        (0, 15, "longer, as much as 1 of 15 GPUs."),
        (1, 64, "longer, as much as 4 of 64 GPUs. 1 more."),
        (2, 64, "longer, as much as 4 of 64 GPUs. 2 more."),
    ],
)
def test_of_several_slow_ranks_the_worst_is_named_and_its_cost_is_given_in_whole_gpus(
    others: int, world: int, ends: str
) -> None:
    slow = (*(replace(SLOW, rank=n, cost=0.05) for n in range(others)), SLOW)
    sentence = lead(replace(WELL, world=world, slow=slow))[1]
    assert sentence.startswith("Rank 6 on node1 makes every step 7% longer")
    assert sentence.endswith(ends)


def test_an_hour_of_work_that_is_not_stored_is_not_yet_a_risk() -> None:
    assert lead(replace(WELL, at_risk=3600.0))[0] == "well"
    assert lead(replace(WELL, at_risk=3601.0))[0] == "at risk"


def test_steps_that_take_long_are_waited_for() -> None:
    assert lead(replace(WELL, step_seconds=60.0, stepped_at=NOW - 400))[0] == "well"
    assert lead(replace(WELL, step_seconds=60.0, stepped_at=NOW - 500))[0] == "no progress"
    assert lead(replace(WELL, step_seconds=None, stepped_at=None))[0] == "well"


def test_a_recovery_that_takes_longer_than_usual_asks_for_a_look() -> None:
    slow = replace(WELL, state=JobStatus.RECOVERING, live=replace(KILL, opened=NOW - 100), usual_recovery=3.0)
    assert "i7" in lead(slow)[2]
    assert judge(slow).lead.usual_s == 3.0
    assert judge(slow).lead.doing == "restart: restore"


def test_the_worst_leads_and_the_others_are_listed() -> None:
    both = judge(replace(WELL, stepped_at=NOW - 60, slow=(SLOW,), doubtful=(("node2", "lost"),)))
    assert both.lead.condition is Condition.NO_PROGRESS
    assert [one.condition for one in both.others] == [Condition.SLOW, Condition.AT_RISK]


FACTS = st.builds(
    Facts, now=st.just(NOW), state=st.sampled_from(JobStatus), reason=st.sampled_from(["", "why"]),
    since=st.floats(0, NOW), restarts=st.integers(0, 9), step=st.integers(-1, 10**6), world=st.integers(1, 12288),
    max_steps=st.none() | st.integers(1, 10**6), stepped_at=st.none() | st.floats(0, NOW), nodes=st.integers(0, 1536),
    step_seconds=st.none() | st.floats(0, 100), is_queued=st.booleans(), live=st.none() | st.just(KILL),
    ended=st.none() | st.just(KILL), safe=st.none() | st.integers(-1, 10**6), at_risk=st.none() | st.floats(0, 1e6),
    usual_recovery=st.none() | st.floats(0, 1e3), spares=st.integers(0, 3),
    pause=st.none() | st.just(Pause("busy", "it saves", NOW - 5, None, None)),
    slow=st.lists(st.builds(Slow, st.integers(-1, 9), st.integers(-1, 9), st.sampled_from(["", "node1"]),
                            st.floats(0, 1), st.just("text")), max_size=3).map(tuple),
    doubtful=st.lists(st.tuples(st.just("node1"), st.just("lost")), max_size=5).map(tuple),
)  # fmt: skip


@given(FACTS)
def test_whatever_holds_there_is_one_sentence_and_one_action(facts: Facts) -> None:
    found = judge(facts)
    order = list(Condition)
    listed = [order.index(one.condition) for one in (found.lead, *found.others)]
    assert listed == sorted(set(listed))
    for one in (found.lead, *found.others):
        assert one.sentence
        assert "\n" not in one.sentence
        assert one.action.endswith(".")
    ends = {JobStatus.FAILED: "failed", JobStatus.STOPPED: "stopped", JobStatus.FINISHED: "finished"}
    if facts.state.ended:
        assert (found.lead.condition.value, found.others) == (ends[facts.state], ())


@pytest.mark.parametrize(
    ("seconds", "says"), [(-1, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_lengths_are_said_as_people_say_them(seconds: float, says: str) -> None:
    assert length(seconds) == says


def test_where_nobody_knows_which_step_of_the_job_it_is_the_step_is_that_of_this_life() -> None:
    life = replace(WELL, restarts=1, step_of_life=12, max_steps=1000)
    assert lead(life)[1] == "Training normally, at step 12 of this life, with 1 restart so far."
    assert "since step 12 of this life" in lead(replace(life, stepped_at=NOW - 400))[1]
    assert lead(replace(life, state=JobStatus.STOPPED))[1] == "Stopped after step 12 of this life"
    assert "at the restart" in lead(replace(life, step_of_life=-1))[1]
    assert lead(replace(life, state=JobStatus.FINISHED))[1] == "Finished after 893 steps in all attempts and 1 restart."
