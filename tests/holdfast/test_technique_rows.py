"""The benchmark of techniques: what its table says of given figures, the order of turns, and two rows for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.technique_rows import HEAD, Figures, fullest, megabytes, payload, ratio, rows, spread
from benchmarks.turns import order_of

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "techniques.py")]
COUNTERS = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
  lo1: 1 1 0 0 0 0 0 0 999 9 0 0 0 0 0 0
    lo: 20000 50 0 0 0 0 0 0   10000      40    0    0    0     0       0          0
  eth0: 7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
"""


def figures(steps_s: list[float], **others: Any) -> Figures:
    given = {"cpu_s": steps_s, "resident": None, "kinds": None, "wire": None, "formula": None, "loss": 2.0}
    return Figures(steps_s, **{**given, **others})


def test_payload_is_what_was_sent_without_headers() -> None:
    # 14 of Ethernet, 20 of IP, 32 of TCP with time stamps, of each of 40 packets.
    assert payload(COUNTERS) == 10_000 - 40 * (14 + 20 + 32)


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="has no eth1"):
        payload(COUNTERS, "eth1")


def test_a_ratio_is_of_turns_in_the_same_round() -> None:
    # The host is slow in the second round, and in the third: the ratio of the medians would be 2.
    assert ratio([1.0, 8.0, 4.0], [1.0, 4.0, 2.0]) == 2.0
    assert ratio([2.0, 3.0, 10.0], [2.0, 1.0, 10.0]) == 1.0
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])


def test_a_spread_is_from_the_first_to_the_third_quartile() -> None:
    assert spread([0.5, 0.1, 0.3, 0.2, 0.4]) == "200 to 400"
    assert spread([0.25]) == "250 to 250"


def test_the_fullest_rank_counts_kind_by_kind() -> None:
    assert fullest([{"weights": 3, "host": 1}, {"weights": 2, "optimizer": 7}]) == {
        "weights": 3, "host": 1, "optimizer": 7,
    }  # fmt: skip


def test_nothing_counted_is_not_none_there() -> None:
    assert megabytes(None) == "-"
    assert megabytes(0) == ""
    assert megabytes(1_254_999) == "1.25"


def test_a_row_has_each_figure_under_its_head() -> None:
    kinds = {"weights": 1_000_000, "gradients": 2_000_000, "activations": 3_000_000, "host": 4_000_000}
    one = figures([0.2, 0.4, 0.6], cpu_s=[0.1, 0.3, 0.2], resident=50_000_000, kinds=kinds, wire=6e6, formula=7_000_000)
    found = {"plain": figures([0.1, 0.2, 0.3]), "ours": one}
    plain, ours = (dict(zip(HEAD, row, strict=True)) for row in rows(found, {"ours": "plain", "plain": "not run"}))
    assert ours == {
        "system": "ours", "step ms": "400", "quartiles": "300 to 500", "CPU ms": "200", "next to": "2.00 plain",
        "resident MB": "50.00", "weights MB": "1.00", "gradients MB": "2.00", "optimizer MB": "",
        "activations MB": "3.00", "gathered MB": "", "host MB": "4.00", "wire MB": "6.00", "formula MB": "7.00",
        "loss": "2.000",
    }  # fmt: skip
    assert plain["next to"] == ""
    assert {plain[f"{kind} MB"] for kind in ("resident", "weights", "host", "wire", "formula")} == {"-"}


def test_all_take_each_turn_and_each_begins_as_often() -> None:
    names = ["a", "b", "c"]
    orders = [order_of(names, turn) for turn in range(6)]
    assert all(sorted(order) == names for order in orders)
    # Where one is in the first of two turns, counted from the front, it is in the second from the back.
    assert all(there == back[::-1] for there, back in zip(orders[::2], orders[1::2], strict=True))
    assert sorted(order[0] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_an_unknown_system_is_refused() -> None:
    done = subprocess.run([*COMMAND, "--only", "zero 9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--only zero 9: no such system" in done.stderr


@pytest.mark.slow
def test_two_rows_for_real() -> None:
    small = ["--layers", "1", "--width", "64", "--heads", "2", "--inner", "128", "--length", "16", "--rounds", "1"]
    words = ["--groups", "replicas", "--only", "ddp", "zero 1", "--steps", "2", "--json"]
    done = subprocess.run([*COMMAND, *small, *words], stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0
    found = json.loads(done.stdout)["groups"]["dp 2"]
    # Embedding and head of 256 bytes, a layer's attention and its three matrices, three norms.
    parameters = 2 * 256 * 64 + 4 * 64 * 64 + 3 * 64 * 128 + 3 * 64
    assert found["ddp"]["kinds"]["weights"] == found["ddp"]["kinds"]["gradients"] == 4 * parameters
    assert found["ddp"]["kinds"]["optimizer"] == 8 * parameters
    assert found["zero 1"]["kinds"]["weights"] == 4 * parameters / 2
    assert found["zero 1"]["kinds"]["optimizer"] == 8 * parameters / 2
    assert found["ddp"]["kinds"]["activations"] > 0 < found["zero 1"]["kinds"]["activations"]
    assert all(len(one["steps_s"]) == 1 and 0 < one["loss"] < 7 for one in found.values())
    if found["ddp"]["wire"] is None:
        return  # no network namespace here
    # An all-reduce of two is twice (d - 1) M over both, a reduce-scatter and a gather are the same together.
    for one in found.values():
        assert one["wire"] == pytest.approx(2 * 4 * parameters, rel=0.02, abs=20_000)
