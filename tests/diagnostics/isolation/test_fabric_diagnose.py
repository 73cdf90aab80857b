"""`holdfast diagnose` with real agents over real links: a way between switches, and a pair without a third host."""

from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.support.fabric import Fabric, missing

WHY = missing()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(bool(WHY), reason=WHY)]


def ask(hosts: Fabric, test: str) -> dict[str, Any]:
    """One session for each test: the hosts share this machine, and where it is busy, one for both is out of time."""
    for _ in range(5):
        doc = hosts.ask("diagnose", "--test", test)
        if all(v["grade"] != "unable" for v in doc["verdicts"]):
            break
    assert doc["ended"] - doc["began"] < 55
    assert doc["failed"] == []
    return doc


def bad(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """Each is of the way between the switches."""
    found = [v for v in doc["verdicts"] if v["grade"] != "pass"]
    assert {(v["component"], v["grade"]) for v in found} == {("link between switches s0 and s1", "degraded")}, found
    return found


def test_a_narrow_uplink_is_found_by_pairs_and_by_the_all_reduce(tmp_path: Path) -> None:
    """Three hosts under s0 show what a switch can do inside; two are under s1. No host is blamed, all are cleared."""
    with Fabric(tmp_path, hosts=5, says_switches=True) as hosts:
        for name in hosts.names:
            hosts.cables.limit(name, "300mbit")
        hosts.cables.narrow("100mbit")
        by_pairs, by_all = ask(hosts, "pair"), ask(hosts, "all-reduce")
    (pair,) = bad(by_pairs)
    assert "of the rate under one switch: the path between them, not a node" in pair["text"]
    assert by_pairs["cleared"] == hosts.names
    reduced = bad(by_all)
    assert [(v["check"], v["node"]) for v in reduced] == [("all-reduce", name) for name in hosts.names]
    assert all("of the rate of groups under one switch" in v["text"] for v in reduced)


@pytest.mark.skipif(not Fabric.can_lose(), reason="needs nft")
def test_two_hosts_with_a_dead_link_are_named_as_a_pair_after_three_rounds(tmp_path: Path) -> None:
    with Fabric(tmp_path, hosts=2, says_switches=True) as hosts:
        hosts.cables.refuse("n1", ["n0"])
        doc = hosts.ask("diagnose", "--test", "pair")
    assert doc["rounds"] == 3
    assert (doc["failed"], doc["cleared"]) == ([], [])
    assert [(v["node"], v["grade"], v["component"]) for v in doc["verdicts"]] == [
        ("n0", "degraded", "pair with n1"),
        ("n1", "degraded", "pair with n0"),
    ]
    assert doc["verdicts"][0]["text"].startswith("3 of 3 tests with n1 failed: n0, n1 or the path between them")
