"""The help of every command: a group, a summary in one line, an example that parses, no types of flags."""

import shlex
from typing import Any

import pytest
from typer.main import get_command

from holdfast.cli.common import usage
from holdfast.cli.main import build, main
from tests.command_tree import command_tree

COMMANDS = {" ".join(path): command for path, command in usage.walk(command_tree()) if path}
Capture = pytest.CaptureFixture[str]


def is_bare_group(command: Any) -> bool:
    """A group that does nothing by itself."""
    return bool(getattr(command, "commands", {})) and not command.invoke_without_command


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " not in name])
def test_a_command_has_a_group(name: str) -> None:
    assert COMMANDS[name].rich_help_panel in usage.GROUPS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary_of_one_line(name: str) -> None:
    summary = COMMANDS[name].help.partition("\n\n")[0].strip()
    assert summary.endswith(".")
    assert "\n" not in summary
    assert len(summary) <= 130


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not is_bare_group(command)])
def test_a_command_has_an_example_that_it_parses(name: str) -> None:
    words = shlex.split(usage.example_of(COMMANDS[name]))
    path = ["holdfast", *name.split()]
    assert words[: len(path)] == path
    context = COMMANDS[name].make_context(name, words[len(path) :])
    assert len(words) > len(path), "an example shows an argument or an option"
    assert name in ("train", "memory", "plan", "profile") or not context.args, (
        "nothing is left over but the trainer's options"
    )


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_a_flag_shows_no_type(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "train":
        return  # the trainer prints its own help
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "--help" in out
    assert "bool" not in out.lower()


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " not in name])
def test_a_command_by_itself_is_as_it_is_among_all(name: str) -> None:
    alone = dict(usage.walk(get_command(build([name]))))
    assert {path for path in alone if path} == {tuple(other.split()) for other in COMMANDS if other.split()[0] == name}
    for path, command in alone.items():
        if path:
            among = COMMANDS[" ".join(path)]
            assert [p.opts for p in command.params] == [p.opts for p in among.params]
            assert (command.help, command.epilog) == (among.help, among.epilog)


def test_a_name_that_is_no_command_is_compared_with_all(capsys: Capture) -> None:
    assert main(["stauts"]) == 2
    assert "Did you mean 'status'" in capsys.readouterr().err


def test_exit_codes_are_in_the_help_of_the_program(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for code, meaning in usage.EXIT_CODES.items():
        assert f"{code}: {meaning}" in out
    positions = [out.index(f"─ {group} ─") for group in usage.GROUPS]
    assert positions == sorted(positions)


def test_options_of_the_connection_have_a_panel_of_their_own(capsys: Capture) -> None:
    assert main(["stacks", "--help"]) == 0
    own, _, connection = capsys.readouterr().out.partition("Connection")
    assert "--job" in own
    assert "--api-token" not in own
    assert "--api-token-file" in connection


WITHOUT_JSON = {
    "run": "its output is the script's; `--detach` prints the id of the job alone",
    "train": "its output is the trainer's log",
    "controller": "a daemon: it prints one line of JSON in any case",
    "agent": "a daemon: it prints its log",
}
"""Commands without `--json`, and why."""


def test_programs_can_read_the_result_of_every_other_command() -> None:
    acting = {name: command for name, command in COMMANDS.items() if not is_bare_group(command)}
    without = {
        name for name, command in acting.items() if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT_JSON)
