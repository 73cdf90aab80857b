"""Ticks of the kernel's timer: on their grid, none lost, and ended in time."""

import threading
import time
from contextlib import suppress

import pytest

from holdfast.agent.sampling.ticks import Ticks

HOUR = 3600 * 10**9


def test_ticks_missed_come_together() -> None:
    began = time.monotonic()
    ticks = Ticks(1_000_000)
    count = ticks.wait()
    since = time.monotonic()
    while time.monotonic() - since < 0.05:
        pass
    count += ticks.wait()
    took = time.monotonic() - began
    ticks.close()
    assert 50 <= count <= took * 1000 + 1


def test_another_pace_counts_from_now_on() -> None:
    ticks = Ticks(HOUR)
    ticks.pace(1_000_000)
    assert ticks.wait()
    ticks.close()


def test_a_wait_for_a_tick_far_away_wakes_at_the_end() -> None:
    ticks, waiting = Ticks(HOUR), threading.Event()

    def wait() -> None:
        waiting.set()
        with suppress(BlockingIOError):
            while True:
                ticks.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(10)
    ticks.end()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(BlockingIOError):
        ticks.wait()  # over for good
    ticks.close()


def test_the_end_comes_through_at_any_moment() -> None:
    for _ in range(300):
        ticks = Ticks(20_000)

        def wait(ticks: Ticks = ticks) -> None:
            with suppress(BlockingIOError):
                while True:
                    ticks.wait()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        ticks.end()
        thread.join(10)
        assert not thread.is_alive()
        ticks.close()
