"""Operations that stalled workers begin, as NCCL's RAS counts them: growth, the ranks behind, and how often."""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.agent.activity import operations
from holdfast.agent.activity.nccl_ras import ADDRESS, Absent, RasStatus, TooLong, ask, parse_json
from holdfast.agent.activity.operations import ABSENT_S, RESTS_S, NcclOperations, is_own_address
from holdfast.base.errors import Unavailable
from tests.agent.support.fake_ras import FakeRas, serve


class World:
    """Four ranks. The first two are this host's, with pids 100 and 101; the fourth has pid 100 on another host."""

    def __init__(self) -> None:
        self.now = 0.0
        self.counts = [{"AllReduce": 640, "SendRecv": 3} for _ in range(4)]
        self.asked: list[tuple[str, bool]] = []
        self.error: Exception | None = None
        self.operations = NcclOperations(self.ask, lambda: self.now, is_local=lambda host: host == "10.0.0.1")

    def ask(self, address: str, as_text: bool = False) -> RasStatus:
        self.asked.append((address, as_text))
        if self.error is not None:
            raise self.error
        hosts = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")
        ranks = [(n, hosts[n], 100 + n % 3, self.counts[n]) for n in range(4)]
        return parse_json(FakeRas(ranks).json())

    def look(self, after: float = 1.0) -> None:
        self.now += after
        self.operations.look([100, 101])


def test_a_count_that_grows_between_two_looks_is_a_movement() -> None:
    world = World()
    world.look()
    assert math.isnan(world.operations.grew_at(100))
    world.counts[0]["SendRecv"] += 1
    world.look()
    assert (world.operations.grew_at(100), world.operations.behind(100)) == (2.0, "")
    assert math.isnan(world.operations.grew_at(101))
    world.look()
    assert world.operations.grew_at(100) == 2.0
    world.operations.forget(100)
    assert math.isnan(world.operations.grew_at(100))


def test_a_rank_that_has_begun_fewer_than_its_peers_in_two_looks_is_named_with_both_figures() -> None:
    world = World()
    world.counts[1]["AllReduce"] = 639
    world.look()
    assert world.operations.behind(101) == ""  # two processes are not looked at in the same instant
    world.look()
    assert world.operations.behind(101) == (
        "by NCCL's count it has begun 639 AllReduce operations as rank 1 of communicator 0xfa93daea854b060b, "
        "and a peer 640"
    )
    assert world.operations.behind(100) == ""
    world.counts[1]["AllReduce"] = 640
    world.look()
    assert world.operations.behind(101) == ""
    assert world.operations.grew_at(101) == 3.0


def test_one_that_comes_after_is_not_behind() -> None:
    world = World()
    world.counts[1]["AllReduce"] = 600
    for _ in range(3):
        world.look()
        world.counts[1]["AllReduce"] += 10
    assert world.operations.behind(101) == ""


def test_a_count_that_is_new_says_nothing_yet() -> None:
    world = World()
    counts = world.counts
    world.counts = [{"SendRecv": 3} for _ in range(4)]
    world.look()
    world.counts = counts
    world.counts[1]["AllReduce"] = 1
    world.look()
    assert world.operations.behind(101) == ""
    world.look()
    assert "has begun 1 AllReduce" in world.operations.behind(101)


def test_messages_between_two_ranks_leave_no_rank_behind() -> None:
    world = World()
    world.counts[0]["SendRecv"] = 0
    world.look()
    world.look()
    assert world.operations.behind(100) == ""


def test_a_process_with_the_same_number_on_another_host_is_not_ours() -> None:
    world = World()
    world.look()
    world.counts[3]["AllReduce"] += 1  # pid 100 of 10.0.0.2
    world.look()
    assert math.isnan(world.operations.grew_at(100))


@pytest.mark.parametrize(
    ("error", "rests"),
    [(None, 1.0), (Unavailable("slow"), RESTS_S), (Absent("nobody"), ABSENT_S), (TooLong("much"), operations.SOON_S)],
)
def test_questions_rest_after_one_that_failed(error: Exception | None, rests: float) -> None:
    world = World()
    world.look()
    world.error = error
    world.look()
    begun: list[int] = []
    world.operations._aside = type("Free", (), {"is_free": True, "begin": lambda self, job: begun.append(1)})()
    for after, count in ((rests - 0.05, 0), (rests + 0.2, 1)):
        world.operations.begin([100], world.now + after)
        assert len(begun) == count


def test_of_a_large_job_it_asks_seldom_and_in_text() -> None:
    world = World()
    many = [(n, "10.0.0.2", n, {"AllReduce": 1}) for n in range(3000)]
    world.operations._ask = lambda address, as_text=False: parse_json(FakeRas(many).json())
    world.look()
    assert world.operations._next_at - world.now >= 30.0
    world.operations._ask = world.ask
    world.error = TooLong("much")
    world.look()
    world.error = None
    world.look()
    assert [as_text for _, as_text in world.asked] == [False, True]


def test_the_address_is_that_with_which_a_worker_was_started_not_its_fork_servers() -> None:
    world = World()
    started = {(100, "NCCL_RAS_ADDR"): "127.0.0.1:3100"}
    world.operations.variable = lambda pid, name: started.get((pid, name), "")
    world.look()
    assert {address for address, _ in world.asked} == {"127.0.0.1:3100", ADDRESS}


@contextmanager
def sleeper(**env: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(60)"],
        env=os.environ | env, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_it_asks_where_the_workers_environment_says_and_over_tcp() -> None:
    with serve(FakeRas()) as ras, sleeper(NCCL_RAS_ADDR=ras.address) as pid:
        ras.ranks = [(0, "127.0.0.1", pid, {"AllReduce": 7}), (1, "192.0.2.1", pid, {"AllReduce": 8})]
        now = [0.0]
        found = NcclOperations(functools.partial(ask, patience=30.0), lambda: now[0])
        found.look([pid])
        found.look([pid])
        assert "has begun 7 AllReduce operations as rank 0" in found.behind(pid)
        ras.ranks[0][3]["AllReduce"] = 8
        now[0] = 5.0
        found.look([pid])
        assert (found.grew_at(pid), found.behind(pid)) == (5.0, "")
        found.close()


def test_only_an_address_of_this_host_is_its_own() -> None:
    assert is_own_address("127.0.0.1")
    assert not any(map(is_own_address, ("192.0.2.1", "", "unknown", "localhost", "1" * 100)))


def test_it_asks_nothing_without_ranks() -> None:
    def refuse(*args: Any, **more: Any) -> RasStatus:
        raise AssertionError("asked")

    found = NcclOperations(refuse)
    found.begin([], 0.0)
    found.look([])
