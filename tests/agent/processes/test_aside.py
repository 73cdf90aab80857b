"""Tasks that may block: one at a time, and a blocked one is abandoned."""

import threading

from holdfast.agent.processes.aside import MOST_LEFT, Aside, Lane
from tests.agent.support.processes import until


def test_one_job_at_a_time() -> None:
    aside, go = Aside("test"), threading.Event()
    done: list[int] = []
    aside.begin(lambda lane: done.append(int(go.wait(20))))
    assert not aside.is_free
    go.set()
    until(lambda: aside.is_free)
    aside.begin(lambda lane: done.append(2))
    until(lambda: done == [1, 2])
    aside.close()


def test_a_job_that_blocks_is_left_behind_and_does_nothing_more() -> None:
    now, never = [0.0], threading.Event()
    reported: list[bool] = []
    entered: list[Lane] = []
    aside = Aside("test", patience=5.0, clock=lambda: now[0])

    def blocks(lane: Lane) -> None:
        lane.at = "process 7"
        entered.append(lane)
        never.wait(20)
        reported.append(lane.is_left)

    for turn in range(MOST_LEFT):
        assert aside.is_free
        aside.begin(blocks)
        until(lambda turn=turn: len(entered) == turn + 1)  # type: ignore[misc]
        now[0] += 4.0
        assert not aside.is_free
        now[0] += 2.0
        assert aside.is_free == (turn < MOST_LEFT - 1)
    assert not aside.is_free  # so many threads that hang are enough
    assert aside.left[0] == "process 7"
    never.set()
    until(lambda: reported == [True] * MOST_LEFT)
    aside.close()


def test_a_job_that_fails_ends_only_itself() -> None:
    aside = Aside("test")
    done: list[int] = []

    def fails(lane: Lane) -> None:
        done.append(0)
        raise ValueError

    aside.begin(fails)
    until(lambda: done == [0])
    until(lambda: aside.is_free)
    aside.begin(lambda lane: done.append(1))
    until(lambda: done == [0, 1])
    aside.close()
