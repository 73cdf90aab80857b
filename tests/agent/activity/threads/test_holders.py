"""Holders of a process, from made-up files of a kernel: version 1 and 2 of cgroups, and a debugger's script."""

from pathlib import Path

import pytest

from holdfast.agent.activity.threads.holders import Holders
from holdfast.agent.activity.threads.images import Images
from holdfast.agent.processes.proc_files import Stat, parse_stat
from holdfast.wire import types as t

WORKER, TICK = 7, 8


def process(proc: Path, pid: int, name: str, state: str, parent: int = 1, stack: int = 5000) -> Stat:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = [str(parent), *"77000000000000", *"1200", "100", "0", "0", "0", "1000", "2000", str(stack), *"0" * 16]
    raw = f"{pid} ({name}) {state} {' '.join(fields)} {' '.join(str(stack + at) for at in range(7))} 0\n"
    (folder / "stat").write_text(raw)
    (folder / "comm").write_text(f"{name}\n")
    found = parse_stat(raw.encode())
    assert found is not None
    return found


def held_by(proc: Path, stat: Stat, tracer: int = 0, channel: str = "") -> tuple[str, bool]:
    return Holders(str(proc)).of(stat, f"TracerPid:\t{tracer}\n".encode(), WORKER, channel)


@pytest.mark.parametrize(
    ("name", "parent", "words"), [("gdb", "bash", "gdb"), ("gdb", "gcore", "gcore"), ("strace", "bash", "strace")]
)
def test_a_tracer_is_named(name: str, parent: str, words: str, tmp_path: Path) -> None:
    process(tmp_path, 4, parent, "S")
    process(tmp_path, 9, name, "S", parent=4)
    for state in "tS":  # a tracer of system calls lets it run
        assert held_by(tmp_path, process(tmp_path, WORKER, "python", state), 9) == (f"{words} (pid 9) traces it", False)
    assert held_by(tmp_path, process(tmp_path, WORKER, "python", "t"), 11) == ("a process (pid 11) traces it", False)
    assert held_by(tmp_path, process(tmp_path, WORKER, "python", "T")) == ("", False)


def mounted(proc: Path, place: Path, kind: str, options: str, root: str = "/") -> None:
    (proc / "self").mkdir(exist_ok=True)
    with (proc / "self" / "mountinfo").open("a") as file:
        file.write(f"30 25 0:26 {root} {place} rw,relatime shared:9 - {kind} {kind} {options}\n")


def cgroup(place: Path, path: str, **files: str) -> Path:
    folder = place / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


@pytest.mark.parametrize("root", ["/", "/docker/1"])
def test_a_frozen_cgroup_of_version_2_is_found_where_it_was_frozen(root: str, tmp_path: Path) -> None:
    proc, place = tmp_path / "proc", tmp_path / "cgroup"
    stat = process(proc, WORKER, "python", "S")
    mounted(proc, place, "cgroup2", "rw", root)
    (proc / str(WORKER) / "cgroup").write_text(f"0::{root.rstrip('/')}/job/rank\n")
    frozen = cgroup(place, "job", cgroup_freeze="1\n", cgroup_events="populated 1\nfrozen 1\n")
    leaf = cgroup(place, "job/rank", cgroup_freeze="0\n", cgroup_events="populated 1\nfrozen 1\n")
    for channel in ("do_freezer_trap", "get_signal"):
        assert held_by(proc, stat, channel=channel) == (f"the cgroup freezer ({frozen})", True)
    assert held_by(proc, stat, channel="futex_do_wait") == ("", False)  # not even asked
    (frozen / "cgroup.freeze").write_text("0\n")
    assert held_by(proc, stat, channel="get_signal") == (f"the cgroup freezer ({leaf})", True)
    (leaf / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert held_by(proc, stat, channel="get_signal") == ("", False)
    assert held_by(proc, stat, channel="do_freezer_trap") == ("the cgroup freezer", True)  # nothing else waits there


def test_a_frozen_cgroup_of_version_1_leaves_its_threads_in_their_waits(tmp_path: Path) -> None:
    proc, place = tmp_path / "proc", tmp_path / "cgroup"
    stat = process(proc, WORKER, "python", "D")
    mounted(proc, place / "cpu", "cgroup", "rw,cpu")
    mounted(proc, place / "freezer", "cgroup", "rw,freezer")
    (proc / str(WORKER) / "cgroup").write_text("5:cpu:/\n4:freezer:/job/rank\n0::/\n")
    frozen = cgroup(place / "freezer", "job", freezer_state="FROZEN\n", freezer_self_freezing="1\n")
    leaf = cgroup(place / "freezer", "job/rank", freezer_state="FROZEN\n", freezer_self_freezing="0\n")
    assert held_by(proc, stat, channel="futex_do_wait") == (f"the cgroup freezer ({frozen})", True)
    (leaf / "freezer.state").write_text("FREEZING\n")
    assert held_by(proc, stat, channel="nfs_wait") == ("", False)
    (proc / str(WORKER) / "cgroup").write_text("4:freezer:/../job\n")
    assert held_by(proc, stat) == ("", False)


def test_company_is_all_of_its_children_and_any_other_worker(tmp_path: Path) -> None:
    holders = Holders(str(tmp_path))
    for pid, state in ((10, "T"), (11, "Z"), (12, "T"), (20, "S"), (21, "t")):
        process(tmp_path, pid, "python", state)
    assert holders.company([], []) == holders.company([11, 99], [20]) == ""
    assert holders.company([10, 11], []) == "stopped together with 1 other process of its node"
    assert holders.company([10, 11, 12], [20, 21]) == "stopped together with 3 other processes of its node"
    assert holders.company([10, 20], []) == ""  # a signal to the worker and to one of its children


def test_who_has_another_image_and_no_thread_that_ticks_has_left(tmp_path: Path) -> None:
    process(tmp_path, WORKER, "python", "S")
    tick = tmp_path / str(WORKER) / "task" / str(TICK)
    tick.mkdir(parents=True)
    (tick / "comm").write_text("python\n")
    images = Images(str(tmp_path))

    def seen(age: float, thread: int = TICK) -> tuple[bool, bool]:
        sample = images.seen(t.WorkerSample(0, 0, WORKER, tick_age=age), thread)
        return sample.left, sample.tick_age == age

    assert [seen(0.1), seen(9.0), seen(9.0, 0)] == [(False, True)] * 3
    (tick / "comm").unlink()
    assert seen(0.1) == (False, True)  # its end has just come
    assert seen(9.0) == (False, False)  # the same image: the interpreter ends
    process(tmp_path, WORKER, "python", "S", stack=6000)
    assert seen(9.0) == (True, False)
    process(tmp_path, WORKER, "python", "Z", stack=6000)
    assert seen(9.0) == (False, True)
    process(tmp_path, WORKER, "python", "S")
    images.keep(set())
    assert seen(0.1) == (False, True)
    assert seen(9.0) == (True, False)  # what it was before is not known
