"""The timer of the agent's loop: on time, not twice for what is late, and never silent about an error."""

import asyncio
import itertools
import time

import pytest

from holdfast.agent.stream.beat import beat


def test_steps_are_due_where_they_said() -> None:
    dues: list[float] = []

    def step(due: float) -> float:
        dues.append(due)
        if len(dues) == 4:
            raise ValueError("enough")
        return 0.01 * len(dues)

    with pytest.raises(ValueError, match="enough"):
        asyncio.run(beat(step, 0.0))
    gaps = [later - due for due, later in itertools.pairwise(dues)]
    assert all(gap >= asked for gap, asked in zip(gaps, (0.0099, 0.0199, 0.0299), strict=True))


def test_what_is_late_is_not_caught_up_with() -> None:
    dues: list[float] = []
    ended: list[float] = []

    def step(due: float) -> float:
        dues.append(due)
        if len(dues) == 1:
            time.sleep(0.1)
            ended.append(time.monotonic())
        elif len(dues) == 3:
            raise ValueError("enough")
        return 0.02

    with pytest.raises(ValueError, match="enough"):
        asyncio.run(beat(step, 0.0))
    assert dues[1] >= ended[0]  # the four that were missed are never due
    assert dues[2] >= dues[1] + 0.02


def test_a_cancelled_beat_is_silent() -> None:
    called: list[float] = []

    def step(due: float) -> float:
        called.append(due)
        return 0.001

    async def main() -> int:
        task = asyncio.create_task(beat(step, 0.0))
        while len(called) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = len(called)
        await asyncio.sleep(0.01)
        return len(called) - before

    assert asyncio.run(main()) == 0
