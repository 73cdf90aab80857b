"""`demo --pretend`: which meshes it takes; what it serves is in tests/controller/simulation/test_real_time.py."""

import pytest

from holdfast.base.errors import UsageError
from holdfast.cli.demo.pretend import sizes
from holdfast.cli.main import main


@pytest.mark.parametrize(("text", "mesh"), [("8x192x8", (8, 192, 8)), ("1x2x1", (1, 2, 1)), ("2x4x2", (2, 4, 2))])
def test_meshes_that_can_be_shown(text: str, mesh: tuple[int, int, int]) -> None:
    assert sizes(text) == mesh


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8x192", "give a mesh as PPxDPxTP"), ("axbxc", "give a mesh"), ("0x2x2", "0 ranks"), ("1x1x1", "1 ranks"),
        ("64x64x64", "262144 ranks"), ("3x3x1", "no whole nodes"), ("-1x2x2", "give a mesh"), ("128x2x1", "up to 64"),
    ],
)  # fmt: skip
def test_meshes_that_cannot_be_shown(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=why):
        sizes(text)
    assert main(["demo", "--pretend", text]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
