"""Rendezvous through Redis: what torch expects of a store, and a cost independent of the number of ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from forked import Zygote
from real_redis import redis_server

from holdfast.trainer.mesh.redis_store import RedisStore, shown
from holdfast.trainer.mesh.rendezvous import CountingStore, generation_name, outlives_ranks
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.settings.load import load

redis = pytest.importorskip("redis")
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server of our own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture
def store(server: str, request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    made = RedisStore(server, request.node.name, SECOND)
    yield made
    made.close(done=True)


@pytest.mark.parametrize("prefixed", [False, True])
def test_does_what_torchs_own_stores_do(store: RedisStore, prefixed: bool) -> None:
    """The same calls on Redis and on torch's hash store give the same answers, also by way of C++."""
    answers = []
    for each in (store, dist.HashStore()):  # type: ignore[attr-defined]  # public, not listed
        s = dist.PrefixStore("p", each) if prefixed else each
        s.set("a", "1")
        got = [s.get("a"), s.add("n", 2), s.add("n", 3), s.get("n"), s.check(["a"]), s.check(["a", "b"])]
        got += [s.compare_set("c", "", "x"), s.compare_set("c", "x", "y"), s.compare_set("c", "x", "z"), s.get("c")]
        got += [s.compare_set("never", "was", "is"), s.check(["never"]), s.num_keys(), s.delete_key("a")]
        got += [s.delete_key("a"), s.check(["a"])]
        s.multi_set(["d", "e"], ["4", "5"])
        s.append("d", "6")
        got += [*s.multi_get(["d", "e"])]
        s.wait(["d", "e"])
        answers.append([bytes(v) if isinstance(v, bytes | bytearray) else v for v in got])
    assert answers[0] == answers[1]


def test_waits_until_it_is_set(server: str, store: RedisStore) -> None:
    other = RedisStore(server, store.name.removeprefix("holdfast:rendezvous:"), SECOND)
    store.set_timeout(60 * SECOND)
    for turn in range(3):  # the second time the connection for listening is there already
        late = threading.Timer(0.1, lambda turn=turn: other.set(f"late{turn}", "there"))
        late.start()
        begun = time.monotonic()
        assert store.get(f"late{turn}") == b"there"
        assert time.monotonic() - begun < 30  # woken, long before its timeout
        late.join()
    other.close(done=False)


def test_gives_up_with_torchs_own_error(store: RedisStore) -> None:
    with pytest.raises(dist.DistStoreError, match=r"Timed out waiting 0\.2 s for never"):
        store.wait(["never"], timedelta(seconds=0.2))
    with pytest.raises(dist.DistStoreError, match="Timed out"):
        dist.PrefixStore("p", store).get("never")
    assert store.add("still usable", 1) == 1


def test_a_waiter_asks_seldom(store: RedisStore) -> None:
    before = store._client.info("stats")["total_commands_processed"]
    with pytest.raises(dist.DistStoreError):
        store.wait(["never"], timedelta(seconds=1))
    assert store._client.info("stats")["total_commands_processed"] - before < 15


def test_leaves_nothing_behind(server: str, store: RedisStore) -> None:
    store.set("a", "1")
    (key,) = store._client.keys(f"{store.name}*")
    assert 3500 < store._client.ttl(key) <= 3600
    store._client.expire(key, 500)
    store.keep_alive()
    assert store._client.ttl(key) > 3500
    again = RedisStore(server, store.name.removeprefix("holdfast:rendezvous:"), SECOND)
    again.close(done=True)
    assert 0 < store._client.ttl(key) <= 60


def test_generations_do_not_meet(server: str) -> None:
    env = {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
    names = {
        generation_name(Launch(job=job, generation=generation), env | {"MASTER_PORT": port})
        for job in "ab"
        for generation in (0, 1)
        for port in "12"
    }
    assert len(names) == 8
    first, second = (RedisStore(server, name, SECOND) for name in sorted(names)[:2])
    first.set("k", "1")
    assert not second.check(["k"])
    first.close(done=True)
    second.close(done=True)


def test_gloo_connects_late_only_where_the_store_stays() -> None:
    assert outlives_ranks("redis://h", {})
    assert outlives_ranks("env", {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert not outlives_ranks("env", {})


@pytest.mark.parametrize("url", ["redis//h", "http://h", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"parallel\.rendezvous is .*write env, or redis://"):
        load(overrides=[("parallel.rendezvous", url)])


def test_no_server_is_one_line_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.trainer.mesh.redis_store._CONNECT_S", 0.2)
    with pytest.raises(ConfigError, match=r"parallel\.rendezvous redis://127\.0\.0\.1:1/0: ") as caught:
        RedisStore("redis://user:secret@127.0.0.1:1/0", "n", SECOND)
    assert "secret" not in str(caught.value)
    assert shown("rediss://u:p@h:1/2") == "rediss://h:1/2"


def test_counting_changes_nothing() -> None:
    store = CountingStore(dist.HashStore())  # type: ignore[attr-defined]
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("a", "1")
    assert prefixed.get("a") == b"1"
    assert prefixed.add("n", 2) == 2
    prefixed.wait(["a"], SECOND)
    assert store.operations == {"set": 1, "get": 1, "add": 1, "wait": 1}
    assert store.total == 4


def operations(zygote: Zygote, folder: Path, world: int, where: str) -> tuple[int, int]:
    """Store operations of the least and of the busiest rank, from the start to the first agreement of all."""
    tp = 2
    argv = ["--pp", "2", "--tp", str(tp), "--rendezvous", where, "--set", "parallel.timeout_s=180"]
    argv += ["--set", f"train.micro_batches={world}", "--set", "model.layers=4"]
    done = zygote.run("meeting:meet", world, folder, args={"argv": argv}, deadline_s=200.0)
    assert done["exits"] == [0] * world
    counts = [sum(result["operations"].values()) for result in done["results"]]
    return min(counts), max(counts)


@pytest.mark.slow
def test_operations_of_a_rank_do_not_grow(zygote: Zygote, server: str, tmp_path: Path) -> None:
    client = redis.Redis.from_url(server)
    most, commands, seconds = [], [], []
    for world in (4, 8, 64):
        before, begun = client.info("stats")["total_commands_processed"], time.monotonic()
        most.append(operations(zygote, tmp_path / str(world), world, server)[1])
        commands.append((client.info("stats")["total_commands_processed"] - before) / world)
        seconds.append(time.monotonic() - begun)
    client.close()
    assert most[0] <= most[1] == most[2] < 60, most
    # The server's own count: commands of one rank, and its looks while it waits, in the end one a second.
    assert commands[2] < 1.5 * commands[1] + seconds[2], (commands, seconds)
    # The same holds for a TCP store outside of all ranks.
    assert operations(zygote, tmp_path / "tcp", 16, "env")[1] == most[1]


@pytest.mark.slow
def test_trains_the_same_through_redis(zygote: Zygote, server: str, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, "--set", "model.layers=2", "--pp", "2", "--tp", "2", "--steps", "2"]
    results = [
        zygote.run("train", 4, tmp_path / name, args={"argv": [*argv, *more]})["results"]
        for name, more in (("env", []), ("redis", ["--rendezvous", server]))
    ]
    assert [r["losses"] for r in results[0]] == [r["losses"] for r in results[1]]
