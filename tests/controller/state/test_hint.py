"""When an incident advises `--preload`: imports took most of a recovery, and a framework is to blame."""

import pytest

from holdfast.controller.state.incidents import Incident, IncidentState


@pytest.mark.parametrize(
    ("imports", "frameworks", "state", "hint"),
    [
        (8.1, "torch,lightning", "closed",
         "imports took 8.1 of 9.4 s of this recovery: --preload torch,lightning would save most of it"),
        (12.0, "lightning", "closed",
         "imports took 9.4 of 9.4 s of this recovery: --preload lightning would save most of it"),
        (4.6, "lightning", "closed", ""),
        (8.1, "", "closed", ""),
        (8.1, "lightning", "recovering", ""),
        (None, "lightning", "closed", ""),
    ],
)  # fmt: skip
def test_the_hint(imports: float | None, frameworks: str, state: str, hint: str) -> None:
    incident = Incident("i1", 100.0, closed=109.4, imports_s=imports, frameworks=frameworks, state=IncidentState(state))
    assert incident.hint == hint


def test_imports_of_a_moment_are_not_worth_a_word() -> None:
    incident = Incident("i1", 0.0, closed=1.0, imports_s=0.9, frameworks="torch", state=IncidentState.CLOSED)
    assert incident.hint == ""
