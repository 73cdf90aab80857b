"""Rows in a real Redis: as in memory, gone with the next run, errors in one line; and a whole run over them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clicks import data_of, expected_fetches, run_of, train
from real_redis import redis_server

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.cli.main import main
from holdfast.trainer.embeddings.criteo import write_zipf
from holdfast.trainer.embeddings.servers import redis_rows, snapshots
from holdfast.trainer.embeddings.servers.keys import as_keys, server_of
from holdfast.trainer.embeddings.servers.link import Message
from holdfast.trainer.embeddings.servers.redis_rows import RedisRows
from holdfast.trainer.embeddings.servers.rows import MemoryRows
from holdfast.trainer.embeddings.servers.server import Server
from holdfast.trainer.embeddings.servers.tables import Spec, Tables

redis = pytest.importorskip("redis")
KEYS = as_keys([3, (1 << 40) + 7, 1, (1 << 63) + 5])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_as_rows_in_memory(url: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_rows, "AT_ONCE", 3)
    rng = np.random.default_rng(1)
    for rows in (RedisRows(url, 0, 1, 4, dtype), MemoryRows(4, dtype)):
        assert len(rows) == 0
        assert rows.read(KEYS)[1].tolist() == [False] * 4
        values = rng.standard_normal((3, 4)).astype(dtype)
        rows.write(KEYS[:3], values)
        rows.write(KEYS[1:2], -values[1:2])
        found, there = rows.read(KEYS[::-1])
        assert there.tolist() == [False, True, True, True]
        assert found.dtype == np.dtype(dtype)
        assert np.array_equal(found[1:], [values[2], -values[1], values[0]])
        assert rows.keys().tolist() == sorted(KEYS[:3].tolist())
        assert len(rows) == 3


def test_tables_count_and_hash_the_same(url: str) -> None:
    spec = Spec(1, 4, "float64", 7, 0)
    both = [Tables(spec), Tables(spec, RedisRows(url, 0, 1, 4, "float64"))]
    for tables in both:
        rows = tables.fetch(0, 0, KEYS)
        tables.write(0, 0, KEYS[:2], rows[:2] - 1)
    assert both[0].figures() == both[1].figures()
    assert np.array_equal(both[0].copy()[1], both[1].copy()[1])


def test_a_new_run_finds_no_rows_of_an_earlier_one(url: str) -> None:
    for number in range(3):
        RedisRows(url, number, 3, 4, "float64").write(KEYS, np.ones((4, 4)))
    other = redis.Redis.from_url(url)
    other.set("another's", b"1")
    RedisRows(url, 1, 2, 4, "float64")
    assert len(list(other.scan_iter("holdfast:embeddings:*"))) == 3, "the first server is opened first"
    assert len(RedisRows(url, 0, 2, 4, "float64")) == 0
    assert list(other.scan_iter("*")) == [b"another's"]
    other.close()


def test_errors_are_one_line_without_the_password(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Unavailable, match=rf"--tables redis://127\.0\.0\.1:{port}/0: .*refused") as raised:
        redis_rows.check(f"redis://me:hidden@127.0.0.1:{port}/0")
    assert "hidden" not in str(raised.value)
    for wrong in ("127.0.0.1:6379", "http://x", "redis://x:port", "redis://["):
        with pytest.raises(UsageError, match="--tables "):
            redis_rows.check(wrong)
    redis_rows.check(url)
    server = Server()
    head = {"do": "open", "run": "r", "spec": {"trainers": 1, "dim": 4, "dtype": "float64", "seed": 1, "first": 0}}
    opening = {**head, "number": 0, "servers": 1, "store": "", "step": 0, "tables": f"redis://127.0.0.1:{port}/0"}
    with pytest.raises(HoldfastError, match=f"the tables in redis://127.0.0.1:{port}/0: ") as refused:
        server.serve(Message(opening, KEYS[:0], np.zeros((0, 0))))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_run_over_redis_is_plain_training(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "clicks"
    write_zipf(data, 96, 200, seed=2)
    words = ["train-embeddings", "--data", str(data), "--batch", "8", "--dtype", "float64", "--dim", "4", "--seed", "3"]
    words += ["--lr", "0.5", "--lookahead", "3", "--store", str(tmp_path / "s"), "--servers", "2", "--tables", url]
    assert main([*words, "--steps", "6"]) == 0
    assert main([*words, "--steps", "12"]) == 0, "from the snapshot"
    run = run_of(data, steps=12, batch=8, lookahead=3, store=str(tmp_path / "s"))
    out = capfd.readouterr().out
    assert f"fetched (formula {expected_fetches(data_of(run)[6:], 3):,}: equal)" in out
    table = train(run, 1)[0]
    for number in range(2):
        rows = RedisRowsOf(url, number)
        keys = as_keys(sorted(key for key in table if server_of(as_keys([key]), 2)[0] == number))
        assert np.array_equal(rows.keys(), keys)
        assert np.array_equal(rows.read(keys)[0], [table[key] for key in keys.tolist()])
    loaded = snapshots.load_share(str(tmp_path / "s"), 12, replace(run, trainers=1).spec, 0, 1).copy()
    assert loaded[0].tolist() == sorted(table)


class RedisRowsOf(RedisRows):
    """What a run has left, which opening it would remove."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(url, 99, 100, 4, "float64")
        self._hash = f"{redis_rows.PREFIX}{number}-of-2"
