"""Parameters that are not finite on all ranks name no rank, until it is known whose gradient it was."""

from holdfast.controller.state.events import EventSeen, FrameSeen
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual


def started() -> Virtual:
    v = Virtual()
    v.counts_from_zero = True
    v.submit()
    v.run(20.0)
    return v


def spoilt(v: Virtual, rank: int) -> None:
    record = t.StepRecord(rank, v.job.generation, 10**4, int(v.instant.wall * 1e9), 0.1, t.SPOILT)
    v.feed(FrameSeen("node0", t.Frame(10**6, 1, 1, steps=(record,))))


def says(v: Virtual, rank: int, since: int, generation: int) -> None:
    seen = t.ProgressSeen(v.job.spec.id, generation, rank, 0, t.GRADIENTS, since)
    v.feed(EventSeen(v.job.node_of(rank), seen))


def test_no_rank_is_named_for_being_the_first_to_be_sampled() -> None:
    v = started()
    spoilt(v, 1)
    (incident,) = v.incidents
    assert (incident.cause.subject, incident.cause.rank, incident.cause.node) == ("job", -1, "")
    assert incident.cause.text.startswith("the parameters are not finite: at step 10000 most are NaN or infinite")
    assert incident.action == "restart"


def test_the_rank_is_named_when_its_report_comes_after_the_restart_began() -> None:
    v = started()
    spoilt(v, 1)
    world = v.job.spec.world
    for rank in range(world):
        assert v.incidents[0].cause.rank == -1
        says(v, rank, 40 if rank == 5 else 41, 1)
    (incident,) = v.incidents
    assert (incident.cause.subject, incident.cause.node) == ("rank5", v.job.node_of(5))
    assert incident.cause.text.startswith("a gradient of rank 5 was not finite at its optimizer step 40, before it was")
    assert [finding.subject for finding in incident.findings] == ["job", "rank5"]
    v.run(20.0)
    assert v.job.generation == 2


def test_the_rank_is_named_when_all_had_reported_before() -> None:
    v = started()
    for rank in range(v.job.spec.world):
        says(v, rank, 40 if rank == 2 else 41, 1)
    assert not v.incidents, "a gradient alone is no evidence"
    spoilt(v, 0)
    assert v.incidents[0].cause.subject == "rank2"


def test_two_at_once_or_one_that_is_silent_name_nobody() -> None:
    v = started()
    spoilt(v, 0)
    for rank in range(1, v.job.spec.world):
        says(v, rank, 40 if rank == 2 else 41, 1)
    assert v.incidents[0].cause.subject == "job"
    says(v, 0, 40, 1)
    assert v.incidents[0].cause.subject == "job"
