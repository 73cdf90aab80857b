"""What follows a batch beside the next one, with servers that confirm when the test lets them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clicks import run_of

from holdfast.trainer.embeddings.cache import RowCache
from holdfast.trainer.embeddings.servers.keys import Keys, as_keys, server_of
from holdfast.trainer.embeddings.write_back import MOST_OPEN, After, WriteBack

LR, PARTS = 0.5, 3.0
KEYS = as_keys(range(100, 112))
LONG_S = 60.0


class Server:
    """Keeps what it is asked, and has a reply for each `confirm`."""

    def __init__(self, error: str = "") -> None:
        self.asked: list[tuple[dict[str, Any], list[int], np.ndarray]] = []
        self.waiting = self.most = 0
        self._error = error
        self._replies = threading.Semaphore(0)

    def ask(self, head: dict[str, Any], keys: Keys, rows: np.ndarray) -> None:
        if self._error:
            raise ValueError(self._error)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.asked.append((head, keys.tolist(), rows.copy()))

    def confirm(self, count: int) -> None:
        self._replies.release(count)

    def receive(self) -> None:
        assert self._replies.acquire(timeout=LONG_S)
        self.waiting -= 1


class Trainers:
    """Of three, each with the same part."""

    rank, size = 2, 3

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return PARTS * part


def made(servers: list[Server], first: int = 0) -> tuple[WriteBack, RowCache]:
    cache = RowCache(2, torch.float64, lambda: None)
    cache.insert(KEYS, torch.arange(24, dtype=torch.float64).reshape(12, 2))
    one = WriteBack(run_of(Path("clicks"), lr=LR, first=first), Trainers(), servers)  # type: ignore[arg-type]
    one.start(cache)
    return one, cache


def after(cache: RowCache, number: int, later: list[int], alone: list[int], back: list[int], **more: Any) -> After:
    """Of keys; gradients are 1 of `later` and 10 of `alone`."""
    ones = torch.ones(len(later), 2, dtype=torch.float64)
    tens = torch.full((len(alone), 2), 10.0, dtype=torch.float64)
    at = {name: cache.places(as_keys(keys)) for name, keys in (("later", later), ("alone", alone), ("back", back))}
    settings = {"cut": False, "freed": [], **more}
    return After(number, at["later"], ones, at["alone"], tens, at["back"], as_keys(back), **settings)


def test_rows_are_updated_and_those_that_leave_go_to_their_servers() -> None:
    """Row i is (2 i, 2 i + 1); lr 0.5: three trainers take 1.5 of what is summed, one alone takes 5."""
    servers = [Server() for _ in range(3)]
    one, cache = made(servers)
    leaving = list(range(104, 112))
    one.begin(after(cache, 0, [100, 104], [105], leaving, cut=True, freed=[7, 8]))
    assert one.wait_applied(0) == [7, 8]
    assert one.wait_applied(0) == []
    expected = {key: np.array([2.0 * n, 2.0 * n + 1]) for n, key in enumerate(range(100, 112))}
    for key, less in ((100, LR * PARTS), (104, LR * PARTS), (105, LR * 10)):
        expected[key] = expected[key] - less
    for key, row in expected.items():
        assert cache.rows[cache.places(as_keys([key]))[0]].tolist() == row.tolist()
    for server in servers:
        server.confirm(2)
    one.begin(after(cache, 1, [], [], [100]))
    one.end()
    for number, server in enumerate(servers):
        (head, keys, rows), (second, second_keys, _) = server.asked  # also where nothing is its own
        assert head == {"do": "write", "run": "a-test", "trainer": 2, "number": 0, "cut": True}
        assert second == {**head, "number": 1, "cut": False}
        own = [key for key in leaving if server_of(as_keys([key]), 3)[0] == number]
        assert keys == own
        assert rows.tolist() == [expected[key].tolist() for key in own]
        assert second_keys == ([100] if server_of(as_keys([100]), 3)[0] == number else [])
        assert server.waiting == 0


def test_batches_before_the_first_are_applied() -> None:
    server = Server()
    one, cache = made([server], first=5)
    assert one.wait_applied(4) == []
    one.wait_idle()
    one.begin(after(cache, 5, [], [], [101], freed=[3]))
    one.wait_idle()  # which keeps what is free for the next call
    assert one.wait_applied(5) == [3]
    server.confirm(1)
    one.end()


def test_so_many_write_backs_may_be_without_a_reply() -> None:
    """The next batch is applied when the oldest of them is confirmed."""
    slow, fast = Server(), Server()
    one, cache = made([slow, fast])
    fast.confirm(MOST_OPEN + 4)
    for number in range(MOST_OPEN + 4):
        one.begin(after(cache, number, [], [100], []))
    one.wait_applied(MOST_OPEN)
    for open_now in range(1, 4):
        slow.confirm(1)
        one.wait_applied(MOST_OPEN + open_now)
    slow.confirm(MOST_OPEN + 1)
    one.end()
    assert slow.most == MOST_OPEN + 1 == 33
    assert len(slow.asked) == len(fast.asked) == MOST_OPEN + 4


def test_what_goes_wrong_is_raised_where_somebody_waits() -> None:
    one, cache = made([Server(error="the first"), Server(error="the second")])
    one.begin(after(cache, 0, [], [], [101]))
    with pytest.raises(ValueError, match="the first"):
        one.wait_applied(1)
    with pytest.raises(ValueError, match="the first"):
        one.wait_idle()
    with pytest.raises(ValueError, match="the first"):
        one.end()
