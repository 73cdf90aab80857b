"""`holdfast diagnose` with real agents over real links: a way between switches, and a pair without a third host."""

from pathlib import Path

import pytest

from tests.diagnostics.support.fabric import Fabric, missing

WHY = missing()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(bool(WHY), reason=WHY)]


def test_a_narrow_uplink_is_found_by_pairs_and_by_the_all_reduce(tmp_path: Path) -> None:
    """Three hosts under s0 show what a switch can do inside; two are under s1. No host is blamed, all are cleared."""
    with Fabric(tmp_path, hosts=5, says_switches=True) as hosts:
        for name in hosts.names:
            hosts.cables.limit(name, "300mbit")
        hosts.cables.narrow("100mbit")
        for _ in range(8):  # the hosts share this machine: where it is busy, a session may be unable, and says so
            doc = hosts.ask("diagnose", "--test", "pair", "--test", "all-reduce")
            if all(v["grade"] != "unable" for v in doc["verdicts"]):
                break
    bad = [v for v in doc["verdicts"] if v["grade"] != "pass"]
    assert {v["component"] for v in bad} == {"link between switches s0 and s1"}, bad
    assert {v["grade"] for v in bad} == {"degraded"}
    (pair,) = [v for v in bad if v["check"] == "pair"]
    assert "of the rate under one switch: the path between them, not a node" in pair["text"]
    reduced = [v for v in bad if v["check"] == "all-reduce"]
    assert [v["node"] for v in reduced] == hosts.names
    assert all("of the rate of groups under one switch" in v["text"] for v in reduced)
    assert (doc["failed"], doc["cleared"]) == ([], hosts.names)
    assert doc["ended"] - doc["began"] < 55


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
