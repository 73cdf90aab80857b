"""perftest's command lines, and its output as recorded from real runs of version 6.x."""

import math

import pytest

from holdfast.diagnostics.measure.perftest import command, parse, rate, roce_gid

# As printed by a client with --report_gbits.
OUTPUT = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 Number of qps   : 1		Transport type : IB
 Connection type : RC		Using SRQ      : OFF
 PCIe relax order: ON
 ibv_wr* API     : ON
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs	 : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x0127 PSN 0x4d7d0c RKey 0x1fff00 VAddr 0x007f2b5c000000
 remote address: LID 0x01 QPN 0x0126 PSN 0x9cbfbf RKey 0x1ffe00 VAddr 0x007f0a18000000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8388608    20000            392.53             391.98  		     0.005841
---------------------------------------------------------------------------------------
"""


def test_the_average_in_bytes() -> None:
    assert parse(OUTPUT) == pytest.approx(391.98e9 / 8)


@pytest.mark.parametrize(
    "text",
    ["", "Couldn't connect to 127.0.0.1:18515\n Unable to open file descriptor", " 8388608 20000 inf", OUTPUT[:-220]],
)
def test_no_line_of_results_is_no_figure(text: str) -> None:
    assert math.isnan(parse(text))


def test_command_lines() -> None:
    words = ["ib_write_bw", "-d", "mlx5_1", "-p", "18515", "-F", "-s", "8388608"]
    assert command("mlx5_1", 18515) == [*words, "--iters=1000", "--report_gbits"]
    assert command("mlx5_1", 18515, "10.0.0.2", gid=3, is_full=True) == [
        *words, "--iters=20000", "-x", "3", "--report_gbits", "10.0.0.2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "gigabits"), [("400 Gb/sec (4X NDR)", 400), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), ("fast", None)]
)
def test_rates_of_ports(text: str, gigabits: float | None) -> None:
    found = rate(text)
    assert math.isnan(found) if gigabits is None else found == gigabits * 1e9 / 8


def test_the_address_for_roce_is_version_2_with_ipv4_where_there_is_one() -> None:
    types = {0: "IB/RoCE v1\n", 1: "RoCE v2\n", 2: "IB/RoCE v1\n", 3: "RoCE v2\n", 4: "RoCE v2"}
    gids = {
        0: "fe80:0000:0000:0000:0ac0:ebff:fe12:3456", 1: "fe80:0000:0000:0000:0ac0:ebff:fe12:3456",
        2: "0000:0000:0000:0000:0000:ffff:0a00:0001", 3: "0000:0000:0000:0000:0000:ffff:0a00:0001",
        4: "0000:0000:0000:0000:0000:0000:0000:0000",
    }  # fmt: skip
    assert roce_gid(types, gids) == 3
    assert roce_gid({1: "RoCE v2"}, {1: gids[1]}) == 1
    assert roce_gid({}, {0: gids[0]}) is None  # InfiniBand
