"""Twenty jobs, some of which share, on eight hosts with faults, in virtual time.

The virtual cluster checks after each event that no node's memory is exceeded and that only jobs that share have a node
together.
"""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.controller.cluster.sharing import MOST
from holdfast.controller.state.model import JobSpec, JobStatus
from tests.controller.support.virtual import Virtual

pytestmark = pytest.mark.aside

HOSTS, JOBS, STEPS = 8, 20, 8
GB = 1_000_000_000
MEMORY = 8 * GB


@dataclass(frozen=True)
class Plan:
    at: float
    nnodes: int
    share_gb: int
    """0: it does not share."""
    priority: int
    preempts: bool


@dataclass(frozen=True)
class Fault:
    at: float
    kind: str
    which: int


plans = st.builds(
    Plan,
    st.floats(0, 12, width=16),
    st.sampled_from([1, 1, 2, 2, 3, 4]),
    st.sampled_from([0, 0, 1, 2, 3, 4, 6]),
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
)
faults = st.builds(
    Fault, st.floats(1, 25, width=16), st.sampled_from(["kill", "kill", "blip", "lose"]), st.integers(0, 99)
)


def play(jobs: list[Plan], trouble: list[Fault]) -> tuple[Virtual, int]:
    """To the end of all jobs; and the most jobs that any node had at once."""
    v = Virtual(nodes=HOSTS, slots=1, memory_bytes=MEMORY)
    v.last_step = STEPS
    most = 0

    def seen(on: dict[str, list[JobSpec]]) -> None:
        nonlocal most
        most = max([most, *map(len, on.values())])

    v.on_check = seen
    began, lost = v.now, 0
    todo: list[tuple[float, int, Plan | Fault]] = sorted(
        ((one.at, n, one) for n, one in enumerate([*jobs, *trouble])), key=lambda entry: entry[:2]
    )
    back: list[tuple[float, str]] = []
    while todo or back or any(not one.c.job.state.ended for one in v.brain.jobs.brains.values()):
        assert v.now < began + 500, {
            id: (one.c.job.state.value, one.c.job.reason) for id, one in v.brain.jobs.brains.items()
        }
        v.run(0.5)
        for name in [name for at, name in back if at <= v.now]:
            v.join(name)
        back = [(at, name) for at, name in back if at > v.now]
        while todo and todo[0][0] <= v.now - began:
            _, n, one = todo.pop(0)
            if isinstance(one, Plan):
                share, urgent = one.share_gb * GB, one.preempts and one.priority > 0
                v.submit(
                    nnodes=one.nnodes, nproc=1, id=f"j{n:02}", share_bytes=share, priority=one.priority, preempt=urgent
                )
                continue
            alive = [agent for agent in v.agents.values() if agent.alive]
            running = [w for w in v.all_workers() if w.running and w.step >= 0]
            if one.kind == "kill" and running:
                w = running[one.which % len(running)]
                v.exit(w.rank, signal=9, job=w.job)
            elif one.kind == "blip":
                name = alive[one.which % len(alive)].name
                v.kill_agent(name)
                back.append((v.now + 1.0, name))
            elif (
                one.kind == "lose" and lost < 2
            ):  # others get such a node after a diagnosis, which these agents can't do
                lost += 1
                name = alive[one.which % len(alive)].name
                v.lose_node(name)
                back.append((v.now + 15.0, name))
    return v, most


def finished(v: Virtual) -> None:
    assert {one.c.job.state for one in v.brain.jobs.brains.values()} == {JobStatus.FINISHED}
    assert all(len(one.c.ledger.rows) == STEPS + 1 for one in v.brain.jobs.brains.values()), "every step, each once"


@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.lists(plans, min_size=JOBS, max_size=JOBS), st.lists(faults, max_size=6))
def test_every_job_does_all_its_steps_and_none_is_starved(jobs: list[Plan], trouble: list[Fault]) -> None:
    v, most = play(jobs, trouble)
    finished(v)
    assert most <= MOST


def test_jobs_do_share_in_such_a_play() -> None:
    """Else the tests above show nothing."""
    v, most = play([Plan(0.0, 4, 2, 0, False) for _ in range(JOBS)], [Fault(3.0, "lose", 2), Fault(4.0, "kill", 5)])
    finished(v)
    assert most == 8 // 2 == MOST


def test_jobs_that_wait_for_their_stores_do_not_give_way_to_each_other_without_end() -> None:
    """What each is given depends on what others are: of two that choose anew at each answer, none ever started."""
    jobs = [
        Plan(0.52, 2, 2, 0, False), Plan(0.34, 2, 0, 0, False), Plan(0.0, 1, 3, 0, False),
        Plan(4.14, 4, 0, 0, False), Plan(0.01, 3, 6, 0, False), Plan(0.0, 4, 0, 0, True),
        Plan(1.1, 4, 6, 1, True), Plan(9.82, 2, 0, 0, True), Plan(0.71, 3, 4, 0, False),
        Plan(10.35, 1, 3, 0, False), Plan(0.0, 2, 0, 0, False), Plan(0.0, 3, 3, 1, True),
        Plan(11.54, 4, 3, 0, True), Plan(0.0, 2, 1, 1, False), Plan(0.0, 1, 2, 1, False),
        Plan(0.08, 4, 0, 0, False), Plan(2.45, 2, 3, 0, True),
    ]  # fmt: skip
    v, _ = play(jobs, [Fault(2.18, "kill", 33), Fault(14.02, "lose", 9)])
    finished(v)
