"""What a fault would cost, from the nodes' reports of their snapshots."""

import pytest

from holdfast.controller.state.at_risk import AtRisk, at_risk

SHOT = {"snapshot_step": 50.0, "snapshot_age_seconds": 0.5}
PEER = {"snapshot_peer_step": 48.0}
STORE = {"checkpoint_age_seconds": 30.0}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], AtRisk(None, None, None)),
        ([{}, {}], AtRisk(None, None, None)),
        ([SHOT, SHOT], AtRisk(0.6, None, None)),
        ([SHOT, {}], AtRisk(None, None, None)),  # one node without is enough to lose all
        ([SHOT | STORE, STORE], AtRisk(30.1, 30.1, 30.1)),
        ([SHOT | PEER, SHOT | PEER | {"snapshot_age_seconds": 0.9}], AtRisk(1.0, 1.4, None)),
        ([SHOT | PEER | STORE, SHOT | STORE], AtRisk(0.6, 30.1, 30.1)),
        ([SHOT | PEER | STORE] * 2, AtRisk(0.6, 1.0, 30.1)),
        ([SHOT | PEER | {"snapshot_peer_step": 51.0}], AtRisk(0.6, 0.6, None)),
    ],
)
def test_what_a_fault_costs(hosts: list[dict[str, float]], expected: AtRisk) -> None:
    found = at_risk([(host, 0.1) for host in hosts], step_seconds=0.2)
    assert (found.worker, found.node, found.job) == pytest.approx((expected.worker, expected.node, expected.job))
