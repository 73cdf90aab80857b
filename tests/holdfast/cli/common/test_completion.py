"""Names that the shell completes, with a controller and without one."""

import socket
import time
from collections.abc import Iterator

import pytest
from typer.main import get_command

from holdfast.base.config.client import ClientConfig
from holdfast.cli.common import completion
from holdfast.cli.main import build, main
from tests.holdfast.support.fake_controller import FakeController

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    monkeypatch.setattr(completion, "TIMEOUT_S", 60.0)  # it answers when the machine lets it
    server = FakeController()
    yield server
    server.close()


def complete(line: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> list[str]:
    """What a shell is given for the last word of a line, an empty one after a space."""
    words = line.split(" ")
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as end:
        main([])  # the line is in the environment
    assert end.value.code == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("job --job ", ["j1", "train"]),
        ("job stop --job j", ["j1"]),
        ("cordon ", ["node0", "node1"]),
        ("diagnose node0 node", ["node0", "node1"]),
        ("incidents ", ["i1"]),
        ("incidents --job t", ["train"]),
        ("inject ki", ["kill"]),
        ("inject kill node", ["node0", "node1"]),
        ("diagnose --suite ", ["quick", "full"]),
        ("diagnose --test ge", ["gemm"]),
        ("controller --notify s", ["slack="]),
        ("demo --fault seg", ["segfault"]),
        ("schedules inter", ["interleaved", "interleaved-zero-bubble"]),
    ],
)
def test_names_are_completed(
    words: str, found: list[str], fake: FakeController, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTROLLER", fake.address)
    assert complete(f"holdfast {words}", monkeypatch, capsys) == found


def test_the_controller_is_the_one_that_the_line_names(
    fake: FakeController, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTROLLER", "127.0.0.1:1")
    line = f"holdfast cordon --controller {fake.address} node"
    assert complete(line, monkeypatch, capsys) == ["node0", "node1"]


@pytest.mark.parametrize("words", ["cordon ", "job --job ", "incidents ", "inject kill ", "cordon --config gone.toml "])
def test_without_a_controller_there_is_nothing(words: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("HOLDFAST_CONTROLLER", "127.0.0.1:1")
    assert complete(f"holdfast {words}", monkeypatch, capsys) == []


def test_a_silent_controller_gets_a_second(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HOLDFAST_CONTROLLER", f"127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert complete("holdfast cordon ", monkeypatch, capsys) == []
    assert time.monotonic() - began < 30 * completion.TIMEOUT_S


def test_a_client_without_the_token_gets_nothing(
    fake: FakeController, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fake.token = "s3cret"
    monkeypatch.setenv("HOLDFAST_CONTROLLER", fake.address)
    assert complete("holdfast cordon ", monkeypatch, capsys) == []


def test_all_options_of_the_connection_are_read() -> None:
    names = {parameter.name for parameter in get_command(build()).commands["cordon"].params}  # type: ignore[attr-defined]
    assert set(ClientConfig.__dataclass_fields__) <= names
