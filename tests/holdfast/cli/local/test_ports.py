"""Ports for local servers, on hosts whose kernel keeps this or that range for itself."""

import socket
from pathlib import Path

import pytest

from holdfast.base.errors import HoldfastError
from holdfast.cli.local import ports
from holdfast.cli.local.ports import FIRST, LAST, _candidates, free_ports


def test_ports_differ_and_are_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_without_any_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_candidates", lambda: [])
    with pytest.raises(HoldfastError, match="no 2 free ports"):
        free_ports(2)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("32768\t60999\n", FIRST, LAST),
        ("20000 60999\n", FIRST, 19_999),
        ("50000 60999\n", FIRST, LAST),
        ("1024 65535\n", 0, 0),  # as busy hosts are set: the kernel chooses
        ("12500 65535\n", 0, 0),
        ("nothing\n", FIRST, LAST),
    ],
)
def test_where_the_kernels_range_leaves_too_few_it_chooses(tmp_path: Path, text: str, low: int, high: int) -> None:
    (tmp_path / "range").write_text(text)
    assert all(low <= port <= high for port in _candidates(tmp_path / "range"))
    assert _candidates(tmp_path / "missing")
