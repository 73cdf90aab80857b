"""Ticks of the kernel's timer: on their grid, none lost, and over when they shall be."""

import threading
import time

from holdfast.agent.ticks import Ticks


def test_ticks_missed_come_together() -> None:
    ticks = Ticks(1_000_000)
    began = time.monotonic()
    count = ticks.wait()
    while time.monotonic() - began < 0.05:
        pass
    count += ticks.wait()
    took = time.monotonic() - began
    ticks.close()
    assert 50 <= count <= took * 1000 + 1


def test_another_pace_counts_from_now_on() -> None:
    ticks = Ticks(3600 * 10**9)
    ticks.pace(1_000_000)
    assert ticks.wait() >= 1
    ticks.close()


def test_who_waits_for_a_tick_far_away_wakes_at_the_end() -> None:
    ticks, told = Ticks(3600 * 10**9), []
    thread = threading.Thread(target=lambda: told.append(ticks.wait()))
    thread.start()
    ticks.end()
    thread.join(10)
    assert told == [0]
    ticks.close()
