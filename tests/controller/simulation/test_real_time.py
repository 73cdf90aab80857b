"""A made-up cluster in real time: with a past, with faults that are found as in a real one, and all of it served."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.simulated_spans import Job
from holdfast.controller.pretended import Pretended, pretend, serving_pretended
from holdfast.controller.simulation import made_frames
from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.faults import How, SimulatedFault
from holdfast.controller.simulation.hosts import WALL, ClusterShape
from holdfast.controller.simulation.real_time import PretendedJob
from holdfast.controller.simulation.world import World
from holdfast.controller.state.model import Options

MICRO_BATCHES = 4
PATIENT = Options(silence_floor=20.0)


def made(folder: Path, history: float = 1800.0, **shape: Any) -> Pretended:
    job = PretendedJob(Job(2, 4, 2, MICRO_BATCHES).plan(), MICRO_BATCHES, 1_000_000)
    return pretend(ClusterShape(nodes=2, gpus=8, **shape), job, folder, history, options=PATIENT)


def test_coordinates_are_those_of_the_mesh() -> None:
    mesh = (2, 3, 4)
    found = [made_frames.coordinate(rank, mesh) for rank in range(24)]
    assert found == [(p, d, t) for p in range(2) for d in range(3) for t in range(4)]


def test_there_is_a_past_and_it_ends_now(tmp_path: Path) -> None:
    begun = time.time()
    one = made(tmp_path, history=3600.0, step=2.0)
    job = one.world.job
    assert job is not None
    brain = one.shell.brain.jobs.newest
    assert brain is not None
    last = brain.c.ledger.last
    assert last is not None
    assert last.step > 1000
    assert begun - 60 < last.at < time.time() + 1  # however long it took to simulate
    assert abs(job.submitted_at - (begun - 3600)) < 60
    rows = brain.c.ledger.sorted_rows()
    assert rows[0].loss > rows[-1].loss + 1, "the loss falls"
    one.shell.journal.close()


def test_a_past_from_before_the_machine_booted_is_as_any_other() -> None:
    """The clock that a controller measures with counts from the boot: what lies before has times below 0."""

    def past(begin: float) -> tuple[int, int, list[list[float | str]]]:
        shape = ClusterShape(nodes=3, gpus=8, step=2.0, spares=1)
        world = World(shape, 1, PATIENT, begin, WALL - begin, max_steps=1_000_000)
        breaks = Breaks(world)
        for number, how in enumerate((How.CRASH, How.HANG, How.NAN, How.DEAD)):
            at = 100.0 + 200.0 * number
            world.later(at, breaks.strike, SimulatedFault(at, how.value, how, 0.3, 7 + number))
        world.run(begin + 1200.0)
        brain = world.job_brain
        assert brain is not None
        last = brain.c.ledger.last
        assert last is not None
        stops = [[*(round(at - begin, 3) for at in times), kind] for *times, kind in world.stops]
        return last.step, brain.c.job.generation, stops

    one = past(1024.0)
    assert len(one[2]) >= 3, "the faults stop training"
    assert past(-600.0) == past(-4096.0) == one


async def until(what: Any, seconds: float) -> Any:
    end = asyncio.get_running_loop().time() + seconds
    while not (found := await what()):
        assert asyncio.get_running_loop().time() < end, f"not within {seconds:g} s"
        await asyncio.sleep(0.1)
    return found


@pytest.mark.slow
@pytest.mark.calm
@pytest.mark.timeout(600)
def test_a_slow_host_is_named_and_a_crash_is_recovered_from(tmp_path: Path) -> None:
    # Workers that start and restore for so long that no look can miss the recovery.
    one = made(tmp_path, history=300.0, step=0.25, spares=1, start=4.0, restore=4.0)

    async def story() -> None:
        async with (
            serving_pretended(one, "127.0.0.1", 0) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client,
        ):

            async def get(path: str) -> Any:
                answer = await client.get(path, timeout=30)
                assert answer.status_code == 200, answer.text
                return answer.json()

            async def has_ranks() -> bool:
                ranks = await get("/ranks")
                return set(ranks["pp"]) == {0, 1} and len(ranks["rank"]) == 16

            async def leads(condition: str) -> Any:
                health = await get("/job/health")
                return health if health["condition"] == condition else None

            await until(has_ranks, 60)
            one.strike(How.SLOW, where=0.9)
            (slow,) = [host for host in one.world.job_hosts() if host.slow > 1]
            health = await until(lambda: leads("slow"), 240)
            assert f"on {slow.name}" in health["sentence"]
            slow.slow = 1.0
            one.strike(How.CRASH, where=0.1)
            await until(lambda: leads("recovering"), 60)
            step = (await get("/job"))["step"]

            async def goes_on() -> bool:
                return bool((await get("/job"))["step"] > step + 5)

            await until(goes_on, 120)

            async def has_traffic() -> bool:
                return sum((await get(f"/nodes/{slow.name}/traffic"))["nics"][0]["tx"]) > 0

            await until(has_traffic, 60)

    asyncio.run(story())
