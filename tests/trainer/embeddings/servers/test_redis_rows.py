"""Rows in a real Redis: as in memory, gone with the next run, errors in one line; and a whole run over them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clicks import data_of, expected_fetches, run_of, train
from real_redis import redis_server

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.cli.local.ports import free_port
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
    for rows in (RedisRows(url, "one", 0, 1, 4, dtype), MemoryRows(4, dtype)):
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
    both = [Tables(spec), Tables(spec, RedisRows(url, "one", 0, 1, 4, "float64"))]
    for tables in both:
        rows = tables.fetch(0, 0, KEYS)
        tables.write(0, 0, KEYS[:2], rows[:2] - 1)
    assert both[0].figures() == both[1].figures()
    assert np.array_equal(both[0].copy()[1], both[1].copy()[1])


def test_a_run_begins_without_the_rows_that_are_under_its_name_and_touches_no_others(url: str) -> None:
    client = redis.Redis.from_url(url)
    client.flushdb()
    client.set("another's", b"1")
    redis_rows.claim(url, "a.b", {"seed": 1})
    for name in ("a.b", "a.b.c", "axb"):
        for number in range(3):
            RedisRows(url, name, number, 3, 4, "float64").write(KEYS, np.ones((4, 4)))
    before = set(client.scan_iter("*"))
    assert len(before) == 11
    RedisRows(url, "a.b", 1, 2, 4, "float64")
    assert set(client.scan_iter("*")) == before, "the first server is opened first"
    assert len(RedisRows(url, "a.b", 0, 2, 4, "float64")) == 0
    gone = {f"holdfast:embeddings:a.b:{number}-of-3".encode() for number in range(3)}
    assert before - set(client.scan_iter("*")) == gone
    client.close()


def test_a_name_is_of_one_runs_settings(url: str) -> None:
    ours = {"dim": 4, "seed": 1, "store": ""}
    redis_rows.claim(url, "mine", ours)
    redis_rows.claim(url, "mine", dict(reversed(ours.items())))
    redis_rows.claim(url, "yours", {**ours, "seed": 2})
    for changed, says in (({"seed": 2}, "--seed 1, not 2"), ({"store": "s"}, r"--store \(none\), not s")):
        with pytest.raises(UsageError, match=f"a run called mine with {says}: give --tables-name another") as refused:
            redis_rows.claim(url, "mine", {**ours, **changed})
        assert "\n" not in str(refused.value)
    client = redis.Redis.from_url(url)
    client.set("holdfast:embeddings:odd:run", b"[1]")
    with pytest.raises(UsageError, match="settings cannot be read"):
        redis_rows.claim(url, "odd", ours)
    client.close()
    for wrong in ("", "a:b", "a*", "x" * 101):
        with pytest.raises(UsageError, match="--tables-name "):
            redis_rows.claim(url, wrong, ours)


def test_of_runs_that_begin_at_once_one_gets_the_name(url: str) -> None:
    begin = threading.Barrier(8)

    def claims(seed: int) -> bool:
        begin.wait(30)
        try:
            redis_rows.claim(url, "raced", {"seed": seed})
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claims, range(8))) == 1


def test_errors_are_one_line_without_the_password(url: str) -> None:
    port = free_port()
    with pytest.raises(Unavailable, match=rf"--tables redis://127\.0\.0\.1:{port}/0: .*refused") as raised:
        redis_rows.claim(f"redis://me:hidden@127.0.0.1:{port}/0", "one", {})
    assert "hidden" not in str(raised.value)
    for wrong in ("127.0.0.1:6379", "http://x", "redis://x:port", "redis://["):
        with pytest.raises(UsageError, match="--tables "):
            redis_rows.claim(wrong, "one", {})
    redis_rows.claim(url, "checked", {})
    server = Server()
    head = {"do": "open", "run": "r", "spec": {"trainers": 1, "dim": 4, "dtype": "float64", "seed": 1, "first": 0}}
    opening = {**head, "number": 0, "servers": 1, "store": "", "step": 0, "tables_name": "one"}
    opening["tables"] = f"redis://127.0.0.1:{port}/0"
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
    assert main([*words, "--steps", "12", "--store", str(tmp_path / "t")]) == 2
    assert "a run called clicks with --store" in capfd.readouterr().err
    other = [*words, "--steps", "3", "--seed", "4", "--store", "", "--tables-name", "beside"]
    assert main(other) == 0
    capfd.readouterr()
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
        super().__init__(url, "unused", 99, 100, 4, "float64")
        self._hash = f"{redis_rows.PREFIX}clicks:{number}-of-2"
