"""The same guarantees on a real HDFS, by both protocols, and during failures."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from jobs import assert_step, layout_of, restore_all, save_all

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.errors import StaleGeneration
from holdfast.checkpoint.format.checksum import CHUNK_BYTES
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.stores.hdfs import HdfsStore
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.remote import hadoop_error
from holdfast.checkpoint.stores.store import Content, Store
from tests.checkpoint.support.hdfs_cluster import HdfsCluster
from tests.conftest import Until

pytestmark = [pytest.mark.slow, pytest.mark.calm]
TWO = layout_of(2)
BIG = layout_of(2, {"w": GlobalTensor("w", (3000, 1100), "F32"), "b": GlobalTensor("b", (700,), "F64")})
_names = itertools.count()
T = TypeVar("T")


@pytest.fixture(params=["hdfs", "webhdfs"])
def store(request: pytest.FixtureRequest, hdfs: HdfsCluster) -> Store:
    """A store of this test's own, by each protocol."""
    base = hdfs.url if request.param == "hdfs" else hdfs.web_url
    return open_store(f"{base}/test-{next(_names)}/check points", timeout_s=25)


@pytest.fixture
def both(hdfs: HdfsCluster) -> list[Store]:
    """A store by each protocol, for what happens to HDFS only once."""
    return [open_store(f"{base}/test-{next(_names)}", timeout_s=25) for base in (hdfs.url, hdfs.web_url)]


def at_once(work: Callable[[Store], T], stores: list[Store]) -> list[T]:
    with ThreadPoolExecutor(len(stores)) as threads:
        return list(threads.map(work, stores))


@pytest.fixture
def native(hdfs: HdfsCluster) -> Store:
    return open_store(f"{hdfs.url}/test-{next(_names)}", timeout_s=25)


def steps(store: Store) -> list[int]:
    return [info.step for info in list_checkpoints(store.url)]


class Striking:
    """A store; something happens to HDFS while its parts are on their way."""

    def __init__(self, inner: Store, is_on_its_way: threading.Event, happened: threading.Event) -> None:
        self._inner, self._is_on_its_way, self._happened = inner, is_on_its_way, happened

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create(self, path: str, content: Content) -> None:
        def pieces() -> Iterator[memoryview]:
            for number, piece in enumerate(p for whole in content() for p in _mib(whole)):
                if number == 3:
                    self._is_on_its_way.set()
                    assert self._happened.wait(60)
                yield piece

        self._inner.create(path, pieces if "part" in path else content)


def _mib(whole: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    view = memoryview(whole)
    return (view[at : at + CHUNK_BYTES] for at in range(0, len(view), CHUNK_BYTES))


def test_save_list_verify_restore_retain(store: Store, until: Until) -> None:
    fence = claim(store, "job", 0)
    for step in (1, 2, 3, 4):
        assert [one.reason for one in save_all(store, fence, step, BIG, keep=2)] == ["", ""]
    assert steps(store) == [4, 3]
    assert verify(store.url, 4) == []
    found, warnings = restore_all(store, BIG)
    assert_step(found, 4, BIG)
    assert warnings == []
    # Another layout, and no byte more than there is.
    other = layout_of(3, dict(BIG.tensors))
    found, _ = restore_all(store, other)
    assert_step(found, 4, other)
    unique = sum(tensor.num_bytes for tensor in BIG.tensors.values())
    assert sum(one.bytes_read for one in found if one) <= 1.01 * unique
    kept = ["claims/", "step-00000003-t0001/", "step-00000004-t0001/", "work-t0001/"]
    until(lambda: sorted(store.list()) == kept)
    assert store.list(kept[1]) == ["manifest.json", "part-00000.safetensors", "part-00001.safetensors"]


def test_what_a_store_promises(store: Store) -> None:
    store.make_folder("a/b")
    store.make_folder("a/b")
    store.create("a/b/x", lambda: [b"hello ", b"", b"there"])
    store.create("a/b/x", lambda: [b"again and again"])
    assert (store.read("a/b/x"), store.size("a/b/x")) == (b"again and again", 15)
    assert (store.read("a/b/x", 6, 3), store.read("a/b/x", 10, 99), store.read("a/b/x", 15, 0)) == (
        b"and",
        b"again",
        b"",
    )
    with pytest.raises(FileNotFoundError):
        store.read("a/none")
    with pytest.raises(FileNotFoundError):
        store.size("a/none")
    with pytest.raises(NotADirectoryError):
        store.make_folder("a/b/x/y")
    with pytest.raises(OSError, match="a directory"):
        store.create("a/b/x/y", lambda: [b"1"])
    store.claim("a/c", b"mine")
    for taken in ("a/c", "a/b"):
        with pytest.raises(FileExistsError):
            store.claim(taken, b"yours")
    store.replace("a/c", b"new")
    assert store.read("a/c") == b"new"
    with pytest.raises(FileExistsError):
        store.rename("a/b", "a/c")
    store.make_folder("a/full")
    with pytest.raises(FileExistsError):
        store.rename("a/b", "a/full")
    with pytest.raises(FileNotFoundError):
        store.rename("a/none", "a/d")
    store.rename("a/b", "a/d")
    assert store.list("a") == ["c", "d/", "full/"]
    assert (store.list("a/none"), store.list("a/c")) == ([], [])
    store.remove("a")
    store.remove("a")
    assert store.list() == []


def test_small_files_are_whole_and_what_was_written_beside_them_goes(native: Store, until: Until) -> None:
    native.make_folder("a")
    for number in range(25):
        native.replace("a/x", str(number).encode())
        assert native.read("a/x") == str(number).encode()
    until(lambda: native.list() == ["a/"])
    assert native.list("a") == ["x"]


def test_a_small_file_survives_a_claim_that_sweeps(native: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    native.make_folder("a")
    assert isinstance(native, HdfsStore)
    real, swept = native._write, []

    def write(where: str, content: Content, closing: Callable[[], None]) -> None:
        real(where, content, closing)
        if not swept:
            swept.append(where)
            native.remove(where.rpartition("/")[2])

    monkeypatch.setattr(native, "_write", write)
    native.claim("a/x", b"whole")
    assert native.read("a/x") == b"whole"
    assert swept
    with pytest.raises(FileNotFoundError):
        native.claim("none/x", b"nowhere to be")


class NotOurs(Exception):
    pass


def test_a_failure_to_give_the_content_is_raised_at_once(native: Store) -> None:
    native.make_folder("")
    asked = 0

    def content() -> Iterator[bytes]:
        nonlocal asked
        asked += 1
        yield b"some"
        raise NotOurs

    with pytest.raises(NotOurs):
        native.create("x", content)
    assert asked == 1


@pytest.mark.parametrize("at", range(1, 4))
def test_a_run_that_was_asleep_cannot_commit(store: Store, at: int) -> None:
    old = claim(store, "job", 0)
    save_all(store, old, 10, layout_of(1))
    count = itertools.count(1)

    class Asleep:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def create(self, path: str, content: Content) -> None:
            if next(count) == at:
                claim(store, "job", 1)
            store.create(path, content)

        def replace(self, path: str, content: bytes) -> None:
            if next(count) == at:
                claim(store, "job", 1)
            store.replace(path, content)

        def rename(self, old: str, new: str) -> None:
            if next(count) == at:
                claim(store, "job", 1)
            store.rename(old, new)

    with pytest.raises(StaleGeneration, match="generation 1 has taken over"):
        save_all(store, old, 20, layout_of(1), store_of=lambda rank: Asleep())  # type: ignore[arg-type]
    assert steps(store) == [10]


def test_a_datanode_that_dies_during_the_upload_costs_nothing(hdfs: HdfsCluster, both: list[Store]) -> None:
    """Until the NameNode misses it, up to 33 s here, each new block is meant for both DataNodes. The stores ask on."""
    both = [open_store(store.url, timeout_s=60) for store in both]
    fences = {store.url: claim(store, "job", 0) for store in both}
    for store in both:
        assert [one.reason for one in save_all(store, fences[store.url], 1, BIG)] == ["", ""]
    on_their_way, happened = {store.url: threading.Event() for store in both}, threading.Event()

    def kill() -> None:
        for event in on_their_way.values():
            event.wait(60)
        hdfs.datanodes[1].kill()
        hdfs.datanodes[1].wait()
        happened.set()

    def save(store: Store) -> list[str]:
        struck = Striking(store, on_their_way[store.url], happened)
        saved = save_all(store, fences[store.url], 2, BIG, store_of=lambda rank: struck)  # type: ignore[arg-type, return-value]
        return [one.reason for one in saved]

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert at_once(save, both) == [["", ""]] * 2
        assert all(event.is_set() for event in on_their_way.values())
        for store in both:
            assert steps(store) == [2, 1]
            for step in (1, 2):
                assert verify(store.url, step) == []
            assert_step(restore_all(store, BIG)[0], 2, BIG)
    finally:
        for event in on_their_way.values():
            event.set()
        killer.join()
        hdfs.datanodes[1] = hdfs.start_datanode(f"again{next(_names)}")
        hdfs.wait_for(2)


def test_a_namenode_that_stops_for_a_while_is_waited_for(hdfs: HdfsCluster, native: Store) -> None:
    fence = claim(native, "job", 0)
    save_all(native, fence, 1, TWO)
    hdfs.stop_namenode()
    goes_on = threading.Event()

    def go_on() -> None:
        goes_on.set()
        hdfs.go_on_namenode()

    timer = threading.Timer(6, go_on)
    timer.start()
    try:
        assert [one.reason for one in save_all(native, fence, 2, TWO)] == ["", ""]
        assert goes_on.is_set()
    finally:
        timer.join()
    assert steps(native) == [2, 1]
    assert_step(restore_all(native, TWO)[0], 2, TWO)


def test_a_namenode_that_stops_for_longer_costs_one_checkpoint(hdfs: HdfsCluster, both: list[Store]) -> None:
    fences = {store.url: claim(store, "job", 0) for store in both}
    at_once(lambda store: save_all(store, fences[store.url], 1, TWO), both)
    hdfs.stop_namenode()
    try:
        found = at_once(lambda store: save_all(open_store(store.url, timeout_s=1), fences[store.url], 2, TWO), both)
    finally:
        hdfs.go_on_namenode()
    for saved, store in zip(found, both, strict=True):
        assert [one.ok for one in saved] == [False, False]
        assert "\n" not in saved[0].reason
        assert saved[0].reason.startswith("part-00000.safetensors: ")
        assert [one.ok for one in save_all(store, fences[store.url], 3, TWO)] == [True, True]
        assert steps(store) == [3, 1]
        assert_step(restore_all(store, TWO)[0], 3, TWO)


def test_safe_mode_costs_one_checkpoint(hdfs: HdfsCluster, both: list[Store]) -> None:
    fences = {store.url: claim(store, "job", 0) for store in both}
    at_once(lambda store: save_all(store, fences[store.url], 1, TWO), both)
    hdfs.admin("-safemode", "enter")
    try:
        short = [open_store(store.url, timeout_s=3) for store in both]
        for saved in at_once(lambda store: save_all(store, fences[store.url], 2, TWO), short):
            assert not saved[0].ok
            assert "safe mode" in saved[0].reason
            assert saved[0].last_good == 1
        for store in both:
            assert_step(restore_all(store, TWO)[0], 1, TWO)
    finally:
        hdfs.admin("-safemode", "leave")
    for store in both:
        assert save_all(store, fences[store.url], 3, TWO)[0].ok
        assert steps(store) == [3, 1]


def test_a_full_disk_costs_one_checkpoint(hdfs: HdfsCluster, both: list[Store]) -> None:
    fences = {store.url: claim(store, "job", 0) for store in both}
    folders = ["/" + store.url.split("/")[3] for store in both]
    for store in both:
        assert save_all(store, fences[store.url], 1, TWO)[0].ok
    hdfs.admin("-setSpaceQuota", "8m", *folders)
    for store in both:
        saved = save_all(store, fences[store.url], 2, BIG)
        assert not saved[0].ok
        assert "quota" in saved[0].reason
        assert "\n" not in saved[0].reason
        assert saved[0].last_good == 1
    hdfs.admin("-clrSpaceQuota", *folders)
    for store in both:
        assert save_all(store, fences[store.url], 3, BIG, number=9)[0].ok
        assert steps(store) == [3, 1]
        assert verify(store.url, 1) == verify(store.url, 3) == []


def test_a_rename_whose_answer_is_lost_is_a_commit(store: Store) -> None:
    fence = claim(store, "job", 0)

    class Lossy:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def rename(self, old: str, new: str) -> None:
            store.rename(old, new)
            raise hadoop_error("", "connection reset")

    saved = save_all(store, fence, 1, TWO, store_of=lambda rank: Lossy())  # type: ignore[arg-type, return-value]
    assert saved[0].ok
    assert steps(store) == [1]
    assert_step(restore_all(store, TWO)[0], 1, TWO)


def test_no_server_at_the_address_is_one_line(free_port: int, tmp_path: Path) -> None:
    for scheme in ("hdfs", "webhdfs"):
        store = open_store(f"{scheme}://127.0.0.1:{free_port}/x", timeout_s=1)
        with pytest.raises(OSError, match=r"refused|no answer") as caught:
            store.make_folder("")
        assert "\n" not in str(caught.value)
