"""Host gauges and the kernel log, on this host and on recorded lines."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.collectors import kernel_log
from holdfast.agent.collectors.host import HostCollector, memory_pressure, process_state
from holdfast.agent.collectors.kernel_log import KernelLine, KernelLog, OomKill, OomWatch
from holdfast.agent.logs import rules as log_rules
from holdfast.facts import xid
from holdfast.facts.xid import RecoveryAction, Xid
from holdfast.wire.types import Severity
from tests.agent.support.sysfs import put

RULES = log_rules.load()


def test_host_gauges_are_plausible(tmp_path: Path) -> None:
    values = HostCollector([str(tmp_path), str(tmp_path), str(tmp_path / "later")]).collect()
    assert 0 <= values["cpu_ratio"] <= 1.5
    assert 0 < values["memory_used_bytes"] <= values["memory_total_bytes"]
    assert 0 < values[f"disk_free_bytes/{tmp_path}"] <= values[f"disk_total_bytes/{tmp_path}"]
    assert 0 < values["descriptors_used"] <= values["descriptors_limit"]
    assert f"disk_free_bytes/{tmp_path / 'later'}" not in values
    assert all(isinstance(value, float) for value in values.values())


def test_a_broken_source_costs_itself_and_is_given_up(tmp_path: Path) -> None:
    collector = HostCollector(proc_root=str(tmp_path))
    for _ in range(4):
        values = collector.collect()
    assert "memory_used_bytes" in values
    assert "descriptors_used" not in values
    assert "FileNotFoundError" in collector.refused["descriptors"]


# --- kernel log

FELL = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0)"
OOM = "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:8123kB, anon-rss:7000kB, file-rss:0kB"


def test_the_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"4,10,5000000,-;{FELL}\n")
    log = KernelLog(str(path))
    assert log.poll() == []
    with path.open("a") as file:
        file.write("6,11,6500000,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n3,12,7000000,-,caller=T1;")
        file.flush()
        assert log.poll() == [KernelLine(6.5, 6, "usb 1-1: new device")]
        file.write(f"{OOM}\n")
    assert log.poll() == [KernelLine(7.0, 3, OOM)]
    assert log.oom_killed_pids == {4242: 7.0}
    assert log.poll() == []
    log.close()
    assert log.poll() == []


def test_a_pipe_is_read_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    log = KernelLog(str(tmp_path / "kmsg"))
    writer = os.open(tmp_path / "kmsg", os.O_WRONLY)
    assert log.poll() == []
    os.write(writer, b"4,1,1000000,-;hello\n")
    assert [line.text for line in log.poll()] == ["hello"]
    os.close(writer)
    log.close()


async def heard(log: KernelLog) -> list[str]:
    deadline = time.monotonic() + 60
    while not (lines := log.poll()) and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    return [line.text for line in lines]


def test_a_loop_reports_when_the_kernel_speaks_again_and_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    log = KernelLog(str(tmp_path / "kmsg"))
    writer = os.open(tmp_path / "kmsg", os.O_WRONLY)

    async def main() -> None:
        log.follow()
        for text in ("one", "two"):
            assert log.poll() == []
            os.write(writer, f"4,1,1000000,-;{text}\n".encode())
            assert await heard(log) == [text]
        assert log.poll() == []
        log.say("three")
        assert await heard(log) == ["three"]
        log.close()
        log.close()
        assert log.poll() == []

    asyncio.run(main())
    os.close(writer)


def test_a_file_of_the_disk_is_followed_too(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    log = KernelLog(str(tmp_path / "kmsg"))

    async def main() -> None:
        log.follow()
        assert log.poll() == []
        (tmp_path / "kmsg").write_text("4,1,1000000,-;hello\n")
        assert await heard(log) == ["hello"]

    asyncio.run(main())
    log.close()


def test_lines_read_to_know_of_oom_kills_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    log = KernelLog(str(tmp_path / "kmsg"))
    (tmp_path / "kmsg").write_text(f"4,1,1000000,-;{FELL}\n4,2,2000000,-;{OOM}\n")
    log.read()
    assert log.oom_killed_pids == {4242: 2.0}
    assert [line.text for line in log.poll()] == [FELL, OOM]
    log.close()


def test_no_kernel_log_says_so(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert (log.available, log.absent_reason) == (False, f"{tmp_path}/none: No such file or directory")
    assert log.poll() == []


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=80))
def test_any_record_is_survived(text: str) -> None:
    kernel_log.parse_record(text), xid.parse(text), kernel_log.oom_kill(text)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (OOM, OomKill(4242, "python3", True)),
        ("Out of memory: Killed process 77 (my (odd) name) total-vm:1kB", OomKill(77, "my (odd", False)),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python3,pid=77,uid=0", None),
    ],
)
def test_oom_lines(line: str, found: OomKill | None) -> None:
    assert kernel_log.oom_kill(line) == found


def test_a_process_reports_its_state(tmp_path: Path) -> None:
    put(tmp_path / "77/stat", "77 (my (odd) D name) D 1 77")
    assert process_state(77, str(tmp_path)) == "D"
    assert process_state(78, str(tmp_path)) == ""
    assert process_state(os.getpid()) in "RS"


def test_memory_pressure_is_the_share_of_time_in_which_all_wait(tmp_path: Path) -> None:
    some, full = "avg10=41.00 avg60=1.00 avg300=0.00 total=5", "avg10=12.50 avg60=0.00 avg300=0.00 total=3"
    put(tmp_path / "pressure/memory", f"some {some}\nfull {full}")
    assert memory_pressure(str(tmp_path)) == {"memory_pressure_ratio": 0.125}


@pytest.mark.parametrize(
    ("line", "code", "device", "meaning"),
    [
        (FELL, 79, "0000:9b:00", RecoveryAction.REBOOT),
        (
            "NVRM: Xid (PCI:0000:05:00): 94, pid=7194, Contained: SM (0x1). RST: No, D-RST: No",
            94,
            "0000:05:00",
            RecoveryAction.RESTART_APP,
        ),
        (
            "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101, intr 10000000",
            31,
            "0000:03:00",
            RecoveryAction.RESTART_APP,
        ),
        ("NVRM: Xid (PCI:0000:05:00): 45, pid=1, Ch 00000012", 45, "0000:05:00", RecoveryAction.FOLLOW),
        ("NVRM: Xid (PCI:0000:05:00): 63, pid=1, Row Remapper: New row", 63, "0000:05:00", RecoveryAction.IGNORE),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
            149,
            "0018:01:00",
            RecoveryAction.RESET_GPU,
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 08 (0x00000013 0x00000001)",
            149,
            "0018:01:00",
            RecoveryAction.IGNORE,
        ),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", 79, "0000:9b:00.0", RecoveryAction.REBOOT),
        ("NVRM: Xid (PCI:0000:05:00): 999, something new", 999, "0000:05:00", RecoveryAction.SUPPORT),
    ],
)
def test_xids_and_their_meaning(line: str, code: int, device: str, meaning: RecoveryAction) -> None:
    found = xid.parse(line)
    assert found is not None
    assert (found.code, found.device, found.action) == (code, device, meaning)


def test_a_line_without_xid() -> None:
    assert xid.parse("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15") is None
    assert xid.parse("usb 1-1: disconnected") is None
    assert Xid(45, "").severity is Severity.WARNING


@pytest.mark.parametrize(
    ("line", "rule", "severity"),
    [
        (FELL, "xid-79", Severity.CRITICAL),
        (OOM, "host-oom-kill", Severity.WARNING),
        (OOM.replace("Memory cgroup out", "Out"), "host-oom-kill", Severity.CRITICAL),
        ("mlx5_core 0000:9b:00.0 ens3np0: Link down", "link-down", Severity.WARNING),
        (f"{SWITCH}: 20034, Fatal, Link 30 LTSSM Fault Up", "sxid-20034", Severity.CRITICAL),
        (f"{SWITCH}: 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "sxid-12028", Severity.WARNING),
        (f"{SWITCH}: 20009, Non-fatal, Link 28 RX Short Error Rate", "sxid-20009", Severity.INFO),
        (f"{SWITCH}: 20034, Severity 1 Engine instance 60 Sub-engine instance 00", None, None),
        ("usb 1-1: new device", None, None),
    ],
)
def test_what_a_kernel_line_notifies_the_controller(line: str, rule: str | None, severity: Severity | None) -> None:
    event = kernel_log.event(KernelLine(1.0, 4, line), RULES, wall_ns=5)
    assert (event.rule if event else None) == rule
    if event is not None:
        assert (event.severity, event.rank, event.line, event.wall_ns) == (severity, -1, line, 5)


@pytest.mark.parametrize("text", [FELL, OOM, f"{SWITCH}: 20034, Fatal, Link 30 x"])
def test_what_a_program_writes_into_the_log_is_no_word_of_the_kernels(tmp_path: Path, text: str) -> None:
    (tmp_path / "kmsg").touch()
    log = KernelLog(str(tmp_path / "kmsg"))
    (tmp_path / "kmsg").write_text(f"12,10,5000000,-;{text}\n30,11,5000001,-;{text}\n")  # LOG_USER and LOG_DAEMON
    lines = log.poll()
    assert [line.written for line in lines] == [True, True]
    assert [kernel_log.event(line, RULES, wall_ns=5) for line in lines] == [None, None]
    assert not log.oom_killed_pids


# --- OOM by cgroup


@pytest.mark.parametrize(
    ("line", "file", "first", "second"),
    [
        ("4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3", "oom_kill 4"),
        ("0::/job", "job/memory.events", "low 0\nhigh 9\noom 1\noom_kill 0", "oom 2\noom_kill 1"),
        ("0::/elsewhere/job", "memory.events", "oom_kill 0", "oom_kill 1"),  # a container sees its group as the root
    ],
)
def test_an_oom_kill_is_given_to_one_process(tmp_path: Path, line: str, file: str, first: str, second: str) -> None:
    for pid in (10, 11):
        put(tmp_path / f"proc/{pid}/cgroup", f"9:name=systemd:/\n{line}")
    put(tmp_path / "cg" / file, first)
    watch = OomWatch(str(tmp_path / "proc"), str(tmp_path / "cg"))
    assert watch.remember(10)
    assert watch.remember(11)
    put(tmp_path / "cg" / file, second)
    assert watch.verdict(10)
    assert not watch.verdict(11)
    assert watch.remember(10)
    assert not watch.verdict(10)


def test_oom_without_a_counter(tmp_path: Path) -> None:
    watch = OomWatch(str(tmp_path), str(tmp_path))
    assert not watch.remember(1)
    assert not watch.verdict(1)


def test_oom_on_this_host_is_quiet() -> None:
    watch = OomWatch()
    if watch.remember(os.getpid()):
        assert not watch.verdict(os.getpid())
