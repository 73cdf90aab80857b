"""Drivers' counters: names of several drivers, a driver in memory, and this machine's own."""

import ctypes
import errno
import os
import struct

import pytest

from holdfast.agent.collectors.ethtool import Ethtool, common_name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("rx_prio3_pause", "rx_pause"),
        ("tx_prio3_pause", "tx_pause"),
        ("rx_pause_ctrl_phy", "rx_pause"),
        ("rx_priority_3_xoff.nic", "rx_pause"),
        ("tx_pfc_ena_frames_pri3", "tx_pause"),
        ("rx_prio3_pause_duration", ""),
        ("rx_prio3_pause_transition", ""),
        ("tx_pause_storm_warning_events", ""),
        ("rx_priority_3_xon.nic", ""),
        ("link_down_events_phy", "link_downed"),
        ("rx_symbol_err_phy", "symbol_error"),
        ("rx_packets", ""),
    ],
)
def test_what_drivers_call_it(theirs: str, ours: str) -> None:
    assert common_name(theirs) == ours


class Driver:
    """What a driver answers to the three questions."""

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.asked = 0
        self.refuses = 0

    def ioctl(self, fd: int, request: int, ifreq: bytes) -> int:
        assert request == 0x8946
        assert ifreq[:16].rstrip(b"\0") == b"eth0"
        self.asked += 1
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        (at,) = struct.unpack_from("P", ifreq, 16)
        command = struct.unpack("=I", ctypes.string_at(at, 4))[0]
        if command == 0x37:
            answer, offset = struct.pack("=I", len(self.counters)), 16
        elif command == 0x1B:
            answer, offset = b"".join(name.encode().ljust(32, b"\0") for name in self.counters), 12
        else:
            assert struct.unpack("=II", ctypes.string_at(at, 8)) == (0x1D, len(self.counters))
            answer, offset = struct.pack(f"={len(self.counters)}Q", *self.counters.values()), 8
        ctypes.memmove(at + offset, answer, len(answer))
        return 0


def test_counters_of_one_meaning_are_added_up() -> None:
    driver = Driver({"rx_packets": 5, "rx_prio0_pause": 7, "rx_prio3_pause": 2**40, "link_down_events_phy": 2})
    ethtool = Ethtool(driver.ioctl)
    assert ethtool.read("eth0") == {"rx_pause": 2.0**40 + 7, "link_downed": 2}
    driver.counters["rx_prio0_pause"] = 8
    assert ethtool.read("eth0")["rx_pause"] == 2.0**40 + 8
    assert driver.asked == 4  # names once
    ethtool.close()


def test_a_nic_that_cannot_say_is_asked_once_and_one_that_went_away_again() -> None:
    driver = Driver({})
    driver.refuses = errno.EOPNOTSUPP
    ethtool = Ethtool(driver.ioctl)
    assert ethtool.read("eth0") == ethtool.read("eth0") == {}
    assert driver.asked == 1
    ethtool.close()
    driver = Driver({"tx_pause": 1})
    ethtool = Ethtool(driver.ioctl)
    assert ethtool.read("eth0") == {"tx_pause": 1}
    driver.refuses = errno.ENODEV
    assert ethtool.read("eth0") == {}
    driver.refuses = 0
    assert ethtool.read("eth0") == {"tx_pause": 1}
    ethtool.close()


def test_the_machines_own_interfaces_answer_or_do_not() -> None:
    ethtool = Ethtool()
    for name in [*os.listdir("/sys/class/net"), "no-such-nic", "a-name-that-is-too-long-for-any-nic"]:
        assert all(value >= 0 for value in ethtool.read(name).values())
    ethtool.close()
