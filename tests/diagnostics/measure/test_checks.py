"""The checks: measurements are right, injected faults are found, checks that cannot run give the reason."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.diagnostics.__main__ import run_check
from holdfast.diagnostics.catalog.options import CheckOptions, parse_options
from holdfast.diagnostics.catalog.results import CheckResult, parse_result
from holdfast.diagnostics.checks import gemm, kernel_log, loopback, pair
from holdfast.diagnostics.measure import hardware, mover
from holdfast.diagnostics.measure.mover import MoverClient, MoverServer

pytestmark = pytest.mark.slow


def in_process(*checks: str, env: dict[str, str] | None = None, **options: object) -> list[CheckResult]:
    words = [sys.executable, "-m", "holdfast.diagnostics", *checks, "--json", "--options", json.dumps(options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr
    return [parse_result(line) for line in done.stdout.splitlines()]


# --- GEMM ------------------------------------------------------------------------------------------------------


def test_the_right_product_passes_and_any_one_wrong_element_does_not() -> None:
    a, b, v = gemm.integers(64)
    product = numpy.matmul(a, b)
    assert gemm.wrong_rows(a, b, v, product) == []
    for row, column, by in ((0, 0, 1.0), (63, 63, -1.0), (17, 40, 2.0**-10)):
        broken = product.copy()
        broken[row, column] += by
        assert gemm.wrong_rows(a, b, v, broken) == [row]


@given(st.integers(2, 48))
def test_float32_holds_every_sum_exactly(size: int) -> None:
    a, b, _ = gemm.integers(size)
    assert (numpy.matmul(a, b) == a.astype(int) @ b.astype(int)).all()
    assert gemm._SIZE * 16 < 2**24


def test_wrong_numbers_now_and_then_are_found(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    env = {"PYTHONPATH": str(Path(__file__).parents[1] / "support" / "wrong_numbers"), "WRONG_NUMBERS_IF": str(flag)}
    (sound,) = in_process("gemm", env=env)
    assert sound.faults == ()
    flag.touch()
    (broken,) = in_process("gemm", env=env)
    assert broken.faults[0].fatal
    assert "other bits" in broken.faults[0].text


def test_a_product_that_is_always_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = numpy.matmul

    def wrong(a: object, b: object) -> object:
        product = right(a, b)  # type: ignore[call-overload]
        product[5, 5] += 1.0
        return product

    monkeypatch.setattr(numpy, "matmul", wrong)
    result = gemm.run(CheckOptions())
    assert "wrong in 1 rows, the first of them 5" in result.faults[0].text


# --- pairs -----------------------------------------------------------------------------------------------------


def test_a_pair_over_loopback(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "_LINGER_S", 20.0)  # the thread that replies may be late on a busy machine
    common = {"port": free_port, "session": "d1.7", "address": "127.0.0.1"}
    results = {}
    server = threading.Thread(target=lambda: results.update(server=pair.run(CheckOptions(role="server", **common))))  # type: ignore[arg-type]
    server.start()
    client = pair.run(CheckOptions(role="client", **common))  # type: ignore[arg-type]
    server.join()
    assert results["server"].error == ""
    assert client.error == ""
    figures = {r.metric: r.value for r in client.readings}
    assert figures["bandwidth"] > 1e7
    assert figures["loss"] == 0.0
    assert 0 < figures["round_trip"] < 1
    assert figures["clock_offset"] < 0.05
    assert client.evidence["packets"] >= 300


def test_a_host_that_stands_still_for_a_while_loses_nothing(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MoverServer("127.0.0.1", free_port, "mine", 60.0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    client = MoverClient("127.0.0.1", free_port, "mine", 60.0)
    drain, passed = mover._drain, [0.0]

    def still(udp: socket.socket, word: bytes) -> list[tuple[int, float, float]]:
        """Looked just before the reply came, and stood still from then on until long after the end."""
        if passed == [0.0]:
            select.select([udp], [], [], 30)
            passed.append(5.0)
            return []
        return drain(udp, word)

    monkeypatch.setattr(mover, "_drain", still)
    monkeypatch.setattr(mover.time, "monotonic", lambda real=time.monotonic: real() + sum(passed))
    found = client.echoes(1, 1.0)
    monkeypatch.undo()
    assert found is not None
    assert (found.sent, found.lost) == (1, 0)
    client.bye()
    thread.join()


def test_a_stranger_gets_no_answer_and_takes_no_turn(free_port: int) -> None:
    server = MoverServer("127.0.0.1", free_port, "mine", 10.0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    stranger = MoverClient("127.0.0.1", free_port, "other", 5.0)
    assert stranger.back(0.1) == 0.0
    assert stranger.echoes(5, 0.2) is None or stranger.echoes(5, 0.2).lost == 5  # type: ignore[union-attr]
    MoverClient("127.0.0.1", free_port, "mine", 5.0).bye()
    thread.join()


def test_a_partner_that_is_not_there_is_reported_in_time(free_port: int) -> None:
    start = time.monotonic()
    client = MoverClient("127.0.0.1", free_port, "x", 0.3)
    with pytest.raises(ConnectionRefusedError):
        client.there(0.1)
    assert time.monotonic() - start < 5
    assert not MoverServer("127.0.0.1", free_port, "x", 0.1).serve()


def test_a_port_that_is_taken_is_no_nodes_fault(free_port: int) -> None:
    with_server = MoverServer("127.0.0.1", free_port, "first", 1.0)
    result = pair.run(CheckOptions(role="server", port=free_port, address="127.0.0.1", session="second"))
    assert "is taken" in result.unable
    assert result.evidence == {"try_again": True}
    with_server.serve()


FAKE_PERFTEST = """#!/bin/sh
echo "$@" >> {log}
for last; do :; done
case "$last" in 1*) echo ' 8388608 1000 392.5 390.0 0.0058';; *) sleep 20;; esac
"""


@pytest.fixture
def rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A host with two InfiniBand ports, and a program in perftest's place that gives its figure to clients."""
    for device in ("mlx5_0", "mlx5_1"):
        port = tmp_path / "sys/class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    down = tmp_path / "sys/class/infiniband/mlx5_2/ports/1"
    down.mkdir(parents=True)
    (down / "state").write_text("1: DOWN\n")
    program, log = tmp_path / "bin" / "ib_write_bw", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(FAKE_PERFTEST.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return str(tmp_path / "sys"), log


def test_every_rail_of_a_pair_is_measured_by_itself(free_port: int, rdma: tuple[str, Path]) -> None:
    common = {"port": free_port, "session": "s", "address": "127.0.0.1", "sysfs": rdma[0]}
    devices = ("mlx5_0", "mlx5_1")
    server = threading.Thread(target=lambda: pair.run(CheckOptions(role="server", rdma=devices, **common)))  # type: ignore[arg-type]
    server.start()
    client = pair.run(CheckOptions(role="client", rdma=devices, **common))  # type: ignore[arg-type]
    server.join()
    rails = {r.component: (r.value, r.bar) for r in client.readings if r.component}
    assert rails == {device: (390e9 / 8, 0.9 * 400e9 / 8) for device in devices}


def test_loopback_of_every_rdma_device(rdma: tuple[str, Path]) -> None:
    result = loopback.run(CheckOptions(sysfs=rdma[0]))
    assert {r.component for r in result.readings} == {"mlx5_0", "mlx5_1", "mlx5_0-mlx5_1", "mlx5_1-mlx5_0"}
    assert all(r.value == 390e9 / 8 and r.bar == 0.9 * 400e9 / 8 for r in result.readings)
    assert "-d mlx5_0 -p" in rdma[1].read_text()


def test_loopback_over_tcp_where_there_is_no_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "nic_addresses", lambda: [("a", "127.0.0.1"), ("b", "127.0.0.2")])
    result = loopback.run(CheckOptions(sysfs=str(tmp_path)))
    assert [r.component for r in result.readings] == ["a", "b", "a-b", "b-a"]
    assert all(r.value > 1e6 for r in result.readings)


# --- the host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", kernel_log.PATTERNS, ids=lambda row: str(row.name))
def test_every_pattern_finds_its_sample_and_no_other_pattern_does(row: kernel_log.Pattern) -> None:
    (fault,) = kernel_log.find([f"3,1,50000000,-;{row.sample}"], now=100.0)
    assert fault.text.startswith(f"{row.name}, 1 times")
    assert fault.fatal == row.fatal


def test_old_lines_and_ordinary_ones_are_no_news() -> None:
    sample = kernel_log.PATTERNS[0].sample
    records = [f"3,1,1000000,-;{sample}", "6,2,99000000000,-;usb 1-1: new device", "rubbish", " SUBSYSTEM=pci"]
    assert kernel_log.find(records, now=100_000.0) == []
    assert len(kernel_log.find(records[:1], now=1000.0)) == 1


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("5\n", {5}), ("", set()), ("0,2-2", {0, 2}), ("x-3,1", {1})]
)
def test_lists_of_processors(text: str, cpus: set[int]) -> None:
    assert hardware.parse_cpus(text) == cpus


def test_disk_and_memory_measure_something(tmp_path: Path) -> None:
    disk = run_check("disk", CheckOptions(folder=str(tmp_path)))
    assert {r.metric for r in disk.readings} == {"write", "read"}
    assert disk.faults == ()
    assert run_check("memory", CheckOptions()).readings[0].value > 1e8
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_run_says_why(tmp_path: Path) -> None:
    assert "missing" in run_check("disk", CheckOptions(folder=str(tmp_path / "missing"))).unable
    assert "partner" in run_check("pair", CheckOptions()).unable
    assert "peers" in run_check("all-reduce", CheckOptions()).unable
    assert "GPU" in run_check("device-copy", CheckOptions()).unable or os.path.exists("/proc/driver/nvidia/version")


def test_a_check_that_raises_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: CheckOptions) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("holdfast.diagnostics.checks.memory.run", broken)
    assert "Input/output error" in run_check("memory", CheckOptions()).error


def test_options_come_as_json_and_rubbish_is_refused() -> None:
    options = parse_options('{"suite": "full", "rdma": ["mlx5_0"], "port": 7, "later": 1}', folder="/x")
    assert (options.is_full, options.rdma, options.port, options.folder) == (True, ("mlx5_0",), 7, "/x")
    for text in ("[]", "{", '{"port": "x"}'):
        with pytest.raises(UsageError, match="JSON"):
            parse_options(text)


def test_without_torch_and_numpy_the_rest_still_runs(tmp_path: Path) -> None:
    """An agent's own dependencies hold neither."""
    for name in ("torch", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not installed')")
    found = in_process("gemm", "memory", "clock", "kernel-log", "nvml", "loopback", env={"PYTHONPATH": str(tmp_path)})
    first, *rest = found
    assert "needs numpy" in first.unable
    assert all(result.error == "" for result in rest)
