"""What an incident says of a suspect that was tested and stays."""

import math

import pytest

from holdfast.controller.diagnosis.diagnoses import Outcome
from holdfast.controller.diagnosis.suspects import _why_not
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict


def verdict(grade: Grade, text: str, node: str = "n0") -> Verdict:
    return Verdict(
        node=node, check="pair", metric="ok", component="pair with n1", grade=grade, value=math.nan, bar=math.nan,
        baseline=math.nan, text=text,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cleared", "verdicts", "says"),
    [
        (("n0",), (verdict(Grade.PASS, "fine"),), "nothing found that speaks against it"),
        ((), (verdict(Grade.DEGRADED, "3 of 3 tests with n1 failed"),),
         "it is not decided whose fault it is: pair: 3 of 3 tests with n1 failed"),
        ((), (verdict(Grade.UNABLE, "needs a second idle node"),), "no test could clear it or fail it"),
        ((), (verdict(Grade.DEGRADED, "of another", node="n1"),), "no test could clear it or fail it"),
    ],
)  # fmt: skip
def test_only_a_node_that_passed_is_said_to_have_passed(
    cleared: tuple[str, ...], verdicts: tuple[Verdict, ...], says: str
) -> None:
    assert says in _why_not("n0", Outcome("d1", (), cleared, verdicts))
