"""The short way into a daemon: it reads what typer would read, and leaves everything else to typer."""

import json
import subprocess
import sys

import pytest

from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.cli.main import main
from holdfast.cli.serve import daemons


@pytest.mark.parametrize(
    ("cls", "line", "found"),
    [
        (AgentConfig, "--node-name n7 --slots=4 --preload=", {"node_name": "n7", "slots": "4", "preload": ""}),
        (AgentConfig, "--no-warm --end-with-workers -v", {"warm": False, "end_with_workers": True, "verbose": True}),
        (ControllerConfig, "--config a.toml --grpc-port 0", {"config": "a.toml", "grpc_port": "0"}),
        (ControllerConfig, "", {}),
    ],
)
def test_plain_flags_are_read(cls: type, line: str, found: dict[str, object]) -> None:
    assert daemons.read_flags(cls, line.split()) == found


@pytest.mark.parametrize("line", ["--help", "--slot 4", "--slots", "stray", "--warm=yes", "-x", "--no-slots", "--"])
def test_anything_else_goes_the_long_way(line: str) -> None:
    assert daemons.read_flags(AgentConfig, line.split()) is None


def test_other_commands_are_not_daemons() -> None:
    assert daemons.find([]) is None
    assert daemons.find(["status"]) is None
    assert daemons.find(["agent", "--help"]) is None


@pytest.mark.parametrize("words", [["agent", "--slots", "-3"], ["agent", "--slots", "many"], ["agent", "--slotz", "3"]])
def test_a_mistake_is_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("holdfast: ")
    assert err.count("\n") == 1


def test_a_daemon_keeps_no_command_line_in_memory() -> None:
    script = (
        "import json, sys, holdfast.agent.app as app\n"
        "app.run = lambda config: print(json.dumps(sorted(sys.modules))) or 0\n"
        "from holdfast.cli.main import main\n"
        "sys.exit(main(['agent', '--node-name', 'n0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "pydantic", "httpx"} & set(json.loads(done.stdout))
