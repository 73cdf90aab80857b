"""What the help of every command has: a group, an example, and the exit codes, which are the same everywhere."""

from collections.abc import Iterator, Sequence
from typing import Any

TRY, RUN, WATCH, ACT, OPERATE = "Try", "Run", "Watch", "Act", "Operate"
GROUPS = (TRY, RUN, WATCH, ACT, OPERATE)
CONNECTION = "Connection"
"""The panel of the options that all clients of a controller have."""

EXIT_CODES = {
    "0": "success",
    "1": "failure: a bad result, no answer, or a request that is not possible now (no job yet, a job that is over)",
    "2": "bad input: an option, a name, a file",
    "128 + N": "ended by signal N: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP",
}
JOBS_CODE = "`run`, `train` and `demo` exit with the code of the job."

_EXAMPLE = "Example: "


def example(line: str) -> str:
    """The last line of a command's help."""
    return _EXAMPLE + line


def example_of(command: Any) -> str:
    """The line that `example` put there; empty without one."""
    epilog = str(command.epilog or "")
    return epilog.removeprefix(_EXAMPLE) if epilog.startswith(_EXAMPLE) else ""


def exit_codes() -> str:
    """The last lines of the help of `holdfast` itself."""
    return "\n".join(["Exit codes", *(f"{code}: {meaning}" for code, meaning in EXIT_CODES.items()), JOBS_CODE])


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands under a group, with their paths; each group before its commands."""
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from walk(part, (*path, name))


def without_types(root: Any, words: Sequence[str]) -> Any:
    """The same command. Flags, which take no value, show no type in the help of the command that the words lead to:
    making the contexts of all of them takes 0.3 s."""
    command, context = root, None
    left = list(words)
    while command is not None:
        context = command.make_context("", [], parent=context, resilient_parsing=True)
        for parameter in command.get_params(context):  # --help among them
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        command = getattr(command, "commands", {}).get(left.pop(0)) if left else None
    return root
