"""What people read in one line."""

from holdfast.cli.common.output import incident_line
from tests.holdfast.support.fake_controller import INCIDENT


def test_where_state_comes_from_is_said_once_it_is_known() -> None:
    under_way = INCIDENT | {"state": "recovering", "source": "store", "recover_s": None, "restore_s": None}
    assert incident_line(under_way) == "worker-killed on rank3, seen after 0.02 s, restart"
    assert incident_line(under_way | {"source": "memory", "restore_s": 0.4}).endswith("restart, state from memory")
    assert incident_line(INCIDENT).endswith("training again after 1.50 s, restart, state from memory")
