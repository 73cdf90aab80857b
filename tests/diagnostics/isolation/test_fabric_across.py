"""A diagnosis of hosts under two switches, over real links: a fault that shows only between the switches.

The plan and the verdicts are the controller's; what measures is the agents' own check, in the hosts' namespaces.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from holdfast.controller.diagnosis.diagnosing import Ask, DiagnoseSession
from holdfast.controller.state.model import Instant
from holdfast.diagnostics.catalog.catalog import Suite, choose
from holdfast.diagnostics.catalog.results import parse_result
from holdfast.diagnostics.catalog.verdicts import Grade
from holdfast.diagnostics.isolation.pairs import Candidate
from tests.cables import RATE, Cables, missing

WHY = missing()
SWITCH_OF = {"n0": "s0", "n1": "s0", "n2": "s1", "n3": "s1"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=WHY)]


@pytest.fixture
def cables() -> Iterator[Cables]:
    cables = Cables(SWITCH_OF, subnet="10.78.0")
    try:
        cables.lay()
        for name in SWITCH_OF:
            cables.limit(name, RATE)
        yield cables
    finally:
        cables.close()


def start(cables: Cables, ask: Ask) -> "subprocess.Popen[str]":
    words = ["ip", "netns", "exec", cables.space(ask.node), sys.executable, "-m", "holdfast.diagnostics"]
    words += [*ask.order.checks, "--json", "--options", ask.order.options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def diagnose(cables: Cables) -> DiagnoseSession:
    """One pair after the other: the hosts share this machine's processors."""
    nodes = [Candidate(n, "here", switch, cables.addresses[n], "cpu") for n, switch in SWITCH_OF.items()]
    session = DiagnoseSession("d1", nodes, [], choose(Suite.FULL, ("pair",)), Suite.QUICK)

    def now() -> Instant:
        return Instant(time.monotonic(), time.time())

    asks = session.begin(now())
    while not session.ended:
        running = [(ask, start(cables, ask)) for ask in asks]
        asks = []
        for ask, process in running:
            out, _ = process.communicate(timeout=120)
            asks += session.answered(ask.id, [parse_result(line) for line in out.splitlines()], "", now())
    return session


def test_a_narrow_way_between_two_switches_is_named_and_no_host_is_blamed(cables: Cables) -> None:
    cables.narrow("40mbit")
    session = diagnose(cables)
    assert session.failed == []
    assert session.cleared == sorted(SWITCH_OF)
    (verdict,) = [v for v in session.verdicts if v.grade in (Grade.DEGRADED, Grade.FAIL)]
    assert verdict.component == "link between switches s0 and s1"
    assert "the path between them, not a node" in verdict.text
    assert json.loads(json.dumps(verdict.to_doc()))["grade"] == "degraded"


def test_sound_switches_are_cleared_with_all_their_hosts(cables: Cables) -> None:
    session = diagnose(cables)
    assert [v for v in session.verdicts if v.grade in (Grade.DEGRADED, Grade.FAIL)] == []
    assert session.cleared == sorted(SWITCH_OF)
    assert session.rounds >= 6
