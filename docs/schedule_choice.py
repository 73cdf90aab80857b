"""The figures and the picture of "Which schedule when" in docs/trainer.md, made by `holdfast schedules` itself."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from holdfast.cli.main import main
from holdfast.plan.schedules.table import SCHEDULES

NUMBERS = ("--pp", "8", "--micro-batches", "16")
SLOW = "0.5"
PICTURE = Path(__file__).parent / "images" / "schedule-zbv.svg"


def command(*more: str) -> dict[str, Any]:
    """The answer to `holdfast schedules`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(["schedules", *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def rows() -> list[tuple[str, ...]]:
    """Head and lines of the table, the fastest without message time first."""
    at_once, slow, posted = (
        _by_name(command(*NUMBERS, *more)) for more in ((), ("--message", SLOW), ("--message", SLOW, "--device", "cpu"))
    )
    head = ("schedule", "choose it when", "makespan", "bubble", "held", "messages")
    lines: list[tuple[str, ...]] = [(*head, f"makespan, message {SLOW}", "the same over gloo")]
    for name, one in at_once.items():
        held, chunks = max(one["held"]), one["chunks"]
        figures = (
            f"{one['makespan']:g}",
            f"{one['bubble']:.1%}",
            f"{held / chunks:g}" + (f" ({held:g} x 1/{chunks})" if chunks > 1 else ""),
            f"{max(one['messages'])}",
            f"{slow[name]['makespan']:g}",
            f"{posted[name]['makespan']:g}",
        )
        lines.append((f"`{name}`", SCHEDULES[name].when, *figures))
    return lines


def picture() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "zbv.svg"
        command("zbv", "--pp", "4", "--micro-batches", "8", "--draw", str(path))
        return path.read_text()


def _by_name(answer: dict[str, Any]) -> dict[str, Any]:
    return {one["schedule"]: one for one in answer["schedules"]}
