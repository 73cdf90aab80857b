"""Ticks of the kernel's timer: on their grid, none lost, and over when they shall be."""

import sys
import threading
import time
from contextlib import suppress

import pytest

from holdfast.agent.ticks import Ticks

HOUR = 3600 * 10**9


def test_ticks_missed_come_together() -> None:
    began = time.monotonic()
    ticks = Ticks(1_000_000)
    due = (int.from_bytes(tick, sys.byteorder) for tick in ticks)
    count = next(due)
    since = time.monotonic()
    while time.monotonic() - since < 0.05:
        pass
    count += next(due)
    took = time.monotonic() - began
    ticks.close()
    assert 50 <= count <= took * 1000 + 1


def test_another_pace_counts_from_now_on() -> None:
    ticks = Ticks(HOUR)
    ticks.pace(1_000_000)
    assert next(iter(ticks))
    ticks.close()


def test_who_waits_for_a_tick_far_away_wakes_at_the_end() -> None:
    ticks, waiting = Ticks(HOUR), threading.Event()

    def wait() -> None:
        due = iter(ticks)
        waiting.set()
        with pytest.raises(BlockingIOError):
            for _ in due:
                pass

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(10)
    ticks.end()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(BlockingIOError):
        next(iter(ticks))  # over for good
    ticks.close()


def test_the_end_comes_through_at_any_moment() -> None:
    for _ in range(300):
        ticks = Ticks(20_000)

        def wait(ticks: Ticks = ticks) -> None:
            with suppress(BlockingIOError):
                while True:
                    next(iter(ticks))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        ticks.end()
        thread.join(10)
        assert not thread.is_alive()
        ticks.close()


def test_an_interruption_is_the_end_of_one_iterator_only() -> None:
    ticks = Ticks(1_000_000)
    due = iter(ticks)
    next(due)
    ticks.interrupt()
    with pytest.raises(BlockingIOError):
        for _ in due:
            pass
    assert next(iter(ticks))
    ticks.close()
