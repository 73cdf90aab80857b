"""Of several ends, which one is the cause."""

import pytest

from holdfast.controller.detectors.workers.exits import exit_finding, root_cause
from holdfast.controller.state.incidents import Finding
from holdfast.wire import types as t
from tests.controller.support.standstills import at


def exited(rank: int, wall: float, **how: object) -> Finding:
    values: dict[str, object] = {"code": -1, "signal": 0, "error": ""} | how
    event = t.WorkerExited("j", 1, rank, 1, int(wall * 1e9), **values)  # type: ignore[arg-type]
    return exit_finding(event, "n1", at(100.0))


RESET = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.1]:4000"


def test_the_cause_comes_before_its_echo_whatever_the_clocks_say() -> None:
    echo = exited(0, 5.0, code=1, error=RESET)
    cause = exited(3, 5.2, signal=11)
    assert echo.secondary
    assert root_cause([echo, cause]) == 1
    assert root_cause([cause, echo]) == 0


def test_a_rank_asked_to_end_comes_before_those_that_end_with_it() -> None:
    reported = "holdfast train: rank 3 received SIGTERM: step 20 is in the store\n"
    follows = "holdfast train: rank 0 ends with a worker that received SIGTERM: step 20 is in the store\n"
    echo, cause = exited(0, 5.0, code=143, tail=follows), exited(3, 5.2, code=143, tail=reported)
    assert (echo.kind, cause.kind) == (t.FindingKind.WORKER_PREEMPTED,) * 2
    assert (echo.secondary, cause.secondary, cause.exit_code) == (True, False, 143)
    assert root_cause([echo, cause]) == 1
    assert "step 20 is in the store" in cause.text


def test_a_flapping_link_is_why_its_own_node_was_silent() -> None:
    def reported(kind: t.FindingKind, node: str, severity: t.Severity) -> Finding:
        return Finding(kind, severity, node, "", since=5.0, at=5.0, node=node)

    silent = reported(t.FindingKind.NODE_SILENT, "n1", t.Severity.CRITICAL)
    flaps = reported(t.FindingKind.LINK_FLAP, "n1", t.Severity.WARNING)
    elsewhere = reported(t.FindingKind.LINK_FLAP, "n2", t.Severity.WARNING)
    assert root_cause([silent, flaps]) == 1
    assert root_cause([silent, elsewhere]) == 0


def test_among_causes_the_earliest() -> None:
    assert root_cause([exited(1, 6.0, signal=9), exited(2, 5.0, signal=9)]) == 1


@pytest.mark.parametrize(
    ("how", "code"), [({"signal": 9}, 137), ({"signal": 11}, 139), ({"code": 3}, 3), ({"code": 1, "error": RESET}, 1)]
)
def test_the_exit_code_is_a_shells(how: dict[str, object], code: int) -> None:
    assert exited(0, 5.0, **how).exit_code == code
