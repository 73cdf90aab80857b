"""RDMA and NIC collectors on a synthetic sysfs: one bad file costs one metric."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.collectors import nic, rdma
from holdfast.agent.collectors.files import CounterFiles, leading_number
from tests.agent.support.sysfs import COUNTERS, HW_COUNTERS, STATISTICS, Sysfs, put


def test_ports_say_state_rate_and_place(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    for device in ("mlx5_10", "mlx5_2"):
        sysfs.rdma(device, numa=1)
    sysfs.rdma("mlx5_2", state="1: DOWN", phys="3: Disabled", rate="10 Gb/sec (4X SDR)", layer="Ethernet", port=2)
    first, second, third = rdma.ports(str(tmp_path))
    assert (first.name, second.name, third.name) == ("mlx5_2", "mlx5_2/2", "mlx5_10")
    assert (third.state, third.phys_state, third.rate_bps, third.numa_node) == ("ACTIVE", "LinkUp", 400 * 10**9, 1)
    assert (second.state, second.phys_state, second.link_layer) == ("DOWN", "Disabled", "Ethernet")


def test_all_counters_are_read_and_words_are_bytes(tmp_path: Path) -> None:
    port = Sysfs(tmp_path).rdma("mlx5_0")
    put(port / "counters/port_xmit_data", 230442669431839)
    collector = rdma.RdmaCollector(str(tmp_path))
    assert (collector.available, collector.absent_reason) == (True, "")
    values = collector.collect()
    assert values["rdma/mlx5_0/1/port_xmit_data_bytes"] == 230442669431839 * 4
    assert values["rdma/mlx5_0/1/state"] == 4
    assert values["rdma/mlx5_0/1/phys_state"] == 5
    assert values["rdma/mlx5_0/1/rate_bps"] == 400e9
    assert len(values) == len(COUNTERS) + len(HW_COUNTERS) - 1 + 3  # lifespan is no counter
    collector.close()


def test_na_costs_one_metric_and_is_remembered(tmp_path: Path) -> None:
    port = Sysfs(tmp_path).rdma("mlx5_0")
    put(port / "counters/symbol_error", "N/A (no PMA)")
    collector = rdma.RdmaCollector(str(tmp_path))
    before = collector.collect()
    put(port / "counters/symbol_error", 3)
    assert collector.collect().keys() == before.keys()
    assert "rdma/mlx5_0/1/symbol_error" not in before
    assert "rdma/mlx5_0/1/port_rcv_errors" in before
    assert collector.refused == {"rdma/mlx5_0/1/symbol_error": "N/A (no PMA)"}
    collector.close()


@pytest.fixture
def failing_pread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[str]]:
    """No file system here refuses a read of a regular file, so the refusal is put in below `os.pread`."""

    def fail(suffix: str, number: int) -> list[str]:
        real, asked = os.pread, list[str]()

        def pread(fd: int, size: int, offset: int) -> bytes:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.endswith(suffix):
                asked.append(path)
                raise OSError(number, os.strerror(number))
            return real(fd, size, offset)

        monkeypatch.setattr(os, "pread", pread)
        return asked

    return fail


def test_a_forbidden_register_is_asked_once(tmp_path: Path, failing_pread: Callable[[str, int], list[str]]) -> None:
    Sysfs(tmp_path).rdma("mlx5_0")
    asked = failing_pread("symbol_error", errno.EINVAL)
    collector = rdma.RdmaCollector(str(tmp_path))
    for _ in range(3):
        values = collector.collect()
    assert len(values) == len(COUNTERS) + len(HW_COUNTERS) + 1
    assert len(asked) == 1
    assert collector.refused == {"rdma/mlx5_0/1/symbol_error": "Invalid argument"}
    collector.close()


def test_a_device_that_comes_later_is_taken_up(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("mlx5_0")
    collector = rdma.RdmaCollector(str(tmp_path))
    collector.collect()
    sysfs.rdma("mlx5_1")
    assert collector.collect()["rdma/mlx5_1/1/state"] == 4
    collector.close()


def test_a_vanished_file_is_tried_again_after_a_while(tmp_path: Path) -> None:
    put(tmp_path / "a", 1)
    files = CounterFiles(retry=10)
    files.add("a", str(tmp_path / "a"))
    assert files.read(0.0) == {"a": 1.0}
    (tmp_path / "a").write_text("")
    assert files.read(1.0) == {}
    (tmp_path / "a").unlink()
    assert files.read(12.0) == {}
    put(tmp_path / "a", 2)
    assert files.read(13.0) == {}
    assert files.read(22.5) == {"a": 2.0}
    files.close()


def test_absent_says_so_once_and_costs_nothing(tmp_path: Path) -> None:
    for collector in (rdma.RdmaCollector(str(tmp_path)), nic.NicCollector(str(tmp_path))):
        assert not collector.available
        assert str(tmp_path) in collector.absent_reason
        assert collector.collect() == {}


def test_choice_of_what_to_sample(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)

    def chosen(*names: str) -> list[str]:
        return [pair.name for pair in nic.choose(str(tmp_path), names)]

    assert chosen() == []
    sysfs.net("lo", operstate="unknown", speed="", physical=False)
    assert chosen() == ["lo"]
    sysfs.net("veth0", physical=False)
    assert chosen() == ["veth0"]
    sysfs.net("eth0")
    sysfs.net("eth1", operstate="down")
    assert chosen() == ["eth0"]
    sysfs.rdma("mlx5_0")
    assert chosen() == ["mlx5_0"]
    assert chosen("lo", "eth1", "nosuch") == ["eth1", "lo"]


def chosen(sysfs: Sysfs) -> list[str]:
    return [pair.name for pair in nic.choose(sysfs.path)]


@pytest.mark.parametrize("no_pma", [False, True])
def test_a_device_without_byte_counters_leaves_ethernet_sampled(tmp_path: Path, no_pma: bool) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.net("eth0")
    sysfs.rxe("rxe0", no_pma)
    assert chosen(sysfs) == ["eth0"]
    assert nic.uncounted(sysfs.path) == ("rxe0",)
    collector = rdma.RdmaCollector(str(tmp_path))
    values = collector.collect()
    assert values["rdma/rxe0/1/sent_pkts"] == 0
    assert "rdma/rxe0/1/port_xmit_data_bytes" not in values
    collector.close()


def test_a_virtual_function_that_refuses_leaves_ethernet_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.net("eth0")
    port = sysfs.rdma("mlx5_0")
    real = os.read

    def read(fd: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{port}/counters/"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)
    assert chosen(sysfs) == ["eth0"]
    assert [pair.name for pair in nic.choose(str(tmp_path), ["mlx5_0"])] == ["mlx5_0"]  # as it was asked for


def test_a_half_readable_device_leaves_ethernet_sampled(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.net("eth0")
    put(sysfs.rdma("mlx5_0") / "counters/port_rcv_data", "N/A (no PMA)")
    assert chosen(sysfs) == ["eth0"]


def test_ports_that_are_down_do_not_stand_for_the_network(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.net("eth0")
    sysfs.rdma("mlx5_0", state="1: DOWN", phys="3: Disabled", rate="10 Gb/sec (4X SDR)")
    sysfs.rdma("mlx5_1", state="2: INIT", phys="5: LinkUp")
    assert chosen(sysfs) == ["mlx5_0", "mlx5_1", "eth0"]  # they may come up
    put(tmp_path / "class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE")
    assert chosen(sysfs) == ["mlx5_0", "mlx5_1"]


def test_one_usable_device_beside_others_is_enough(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.net("eth0")
    sysfs.rxe("rxe0")
    sysfs.rdma("mlx5_0")
    assert chosen(sysfs) == ["mlx5_0"]


def test_extended_counters_are_words_too_and_raise_priority(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    port = sysfs.rdma("mlx4_0")
    put(port / "counters/port_xmit_data", 0xFFFFFFFF)  # 32 bits: it stops at its end
    for name, value in (("port_xmit_data_64", 1 << 40), ("port_rcv_data_64", 1 << 41), ("port_xmit_packets_64", 7)):
        put(port / "counters_ext" / name, value)
    (pair,) = nic.choose(str(tmp_path))
    assert (pair.scale, os.path.basename(pair.tx_path), os.path.basename(pair.rx_path)) == (
        4, "port_xmit_data_64", "port_rcv_data_64",
    )  # fmt: skip
    collector = rdma.RdmaCollector(str(tmp_path))
    values = collector.collect()
    assert values["rdma/mlx4_0/1/port_xmit_data_64_bytes"] == 4 << 40
    assert values["rdma/mlx4_0/1/port_rcv_data_64_bytes"] == 4 << 41
    assert values["rdma/mlx4_0/1/port_xmit_packets_64"] == 7
    collector.close()


def test_extended_counters_that_refuse_leave_the_plain_ones(tmp_path: Path) -> None:
    port = Sysfs(tmp_path).rdma("mlx5_0")
    for name in ("port_xmit_data_64", "port_rcv_data_64"):
        put(port / "counters_ext" / name, "N/A (no PMA)")
    (pair,) = nic.choose(str(tmp_path))
    assert (pair.scale, pair.tx_path) == (4, f"{port}/counters/port_xmit_data")


@pytest.mark.parametrize(
    ("name", "is_words"),
    [
        ("port_xmit_data", True),
        ("port_rcv_data_64", True),
        ("vl3_port_xmit_data_64", True),
        ("port_xmit_packets_64", False),
        ("port_xmit_discards", False),
        ("port_xmit_wait", False),
        ("port_xmit_data_errors", False),
        ("tx_bytes", False),
    ],
)
def test_which_counters_count_words(name: str, is_words: bool) -> None:
    assert bool(rdma.WORDS.fullmatch(name)) == is_words


def test_efa_counts_bytes_in_hw_counters(tmp_path: Path) -> None:
    base = tmp_path / "class/infiniband/efa_0/ports/1"
    put(base / "hw_counters/tx_bytes", 5)
    put(base / "hw_counters/rx_bytes", 6)
    put(base / "state", "4: ACTIVE")
    (pair,) = nic.choose(str(tmp_path))
    assert (pair.name, pair.kind, pair.scale) == ("efa_0", "rdma", 1)
    assert pair.tx_path.endswith("hw_counters/tx_bytes")


def test_nics_of_a_node(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("mlx5_0", numa=1)
    sysfs.net("eth0", speed=25000)
    sysfs.net("eth1", operstate="down", speed=-1)
    sysfs.net("lo", operstate="unknown", speed="", physical=False)
    put(tmp_path / "class/net/bonding_masters", "")
    found = {n.name: (n.kind, n.speed_bps, n.numa_node, n.state) for n in nic.nics(str(tmp_path))}
    assert found == {
        "mlx5_0": ("rdma", 400 * 10**9, 1, "ACTIVE"),
        "eth0": ("ethernet", 25 * 10**9, 0, "up"),
        "eth1": ("ethernet", 0, 0, "down"),
        "lo": ("loopback", 0, -1, "unknown"),
    }


def test_interface_statistics_and_flaps(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    folder = sysfs.net("eth0")
    sysfs.net("lo", operstate="unknown", physical=False)
    collector = nic.NicCollector(str(tmp_path))
    put(folder / "tx_errors", 4)
    values = collector.collect()
    assert values["net/eth0/tx_errors"] == 4
    assert values["net/eth0/up"] == 1
    assert values["net/eth0/speed_bps"] == 25e9
    assert not any("/lo/" in name for name in values)
    put(folder.parent / "operstate", "down")
    put(folder.parent / "speed", -1)
    put(folder.parent / "carrier_changes", 2)
    values = collector.collect()
    assert (values["net/eth0/up"], values["net/eth0/carrier_changes"]) == (0, 2)
    assert "net/eth0/speed_bps" not in values
    assert len(values) == len(STATISTICS) + 2
    collector.close()


@pytest.mark.parametrize(
    ("text", "number"),
    [("4: ACTIVE", 4.0), ("400 Gb/sec (4X NDR)", 400.0), ("-1\n", -1.0), ("N/A (no PMA)", None), ("", None)],
)
def test_numbers_in_sysfs(text: str, number: float | None) -> None:
    assert leading_number(text) == number
