"""Any faults in any order, at any moment of virtual time: what must be true of all that can happen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.state.model import JobStatus, Options
from tests.controller.support.virtual import Virtual

pytestmark = pytest.mark.aside

BUG = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\nValueError: bad batch'

KINDS = st.sampled_from(["kill", "bug", "stop", "gil", "agent", "lose", "controller", "none"])
FAULTS = st.lists(st.tuples(KINDS, st.integers(0, 7), st.floats(0.05, 4.0)), min_size=1, max_size=8)


@settings(max_examples=5, deadline=None)
@given(FAULTS)
def test_whatever_happens_training_goes_on_or_an_alert_is_sent(faults: list[tuple[str, int, float]]) -> None:
    trains_or_reports(faults)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)  # others in each run
@given(FAULTS)
def test_whatever_else_happens_training_goes_on_or_an_alert_is_sent(faults: list[tuple[str, int, float]]) -> None:
    trains_or_reports(faults)


def trains_or_reports(faults: list[tuple[str, int, float]]) -> None:
    """Any order of faults at any moment: no two generations at once, and at the end it trains or has said why not."""
    # Several workers that are stopped at once are left to whom stopped them, up to the pause limit.
    v = Virtual(nodes=3, options=Options(pause_limit=10.0))
    v.submit(nnodes=2)
    v.run(1.0)
    for kind, rank, wait in faults:
        v.run(wait)
        alive = [w for w in v.all_workers() if w.running and w.rank == rank]
        name = f"node{rank % 3}"
        if kind == "controller":
            v.restart_controller(away=min(wait, 2.0))
        elif kind == "agent" and v.agents[name].alive:
            v.kill_agent(name)
            v.run(0.5)
            v.join(name)
        elif kind == "lose" and v.agents[name].alive:
            v.lose_node(name)
        elif alive and kind in ("kill", "bug"):
            v.exit(rank, **({"signal": 9} if kind == "kill" else {"code": 1, "error": f"{BUG} {rank} {wait}"}))  # type: ignore[arg-type]
        elif alive and kind in ("stop", "gil"):
            v.stop_worker(rank) if kind == "stop" else v.hold_gil(rank)
    v.run(40.0)
    for agent in v.agents.values():
        if not agent.alive:
            v.join(agent.name)
    v.run(30.0)
    if v.job.state is JobStatus.FAILED:
        assert v.job.reason
        return
    assert v.job.state is JobStatus.RUNNING
    before = v.job.best_step
    v.run(3.0)
    assert v.job.best_step > before
