"""The table of docs/techniques.md, made of the very rows that `holdfast rows` checks."""

import json
import subprocess
import sys
from typing import Any

from holdfast.trainer.rows.table import TECHNIQUES


def table() -> str:
    return made(measured())


def measured() -> list[dict[str, Any]]:
    """In a process of its own: rows count what a process does, and this one may have done other things before."""
    done = subprocess.run([sys.executable, "-m", "holdfast", "rows", "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: a row does not pass, which `made` says by name
        done.check_returncode()
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def made(techniques: list[dict[str, Any]]) -> str:
    """`techniques`: what `holdfast rows --json` prints."""
    lines = ["| id | technique | source | choose it when | rows | the first: expected, measured |", "|" + " --- |" * 6]
    for one, found in zip(TECHNIQUES.values(), techniques, strict=True):
        rows = found["rows"]
        wrong = [row["what"] for row in rows if not row["passes"]]
        assert found["id"] == one.id
        assert not wrong, f"{one.id}: {wrong}"
        first = f"{rows[0]['what']}: {rows[0]['expected']:g}, {rows[0]['measured']:g}"
        lines.append(f"| {one.id} | {one.name} | {one.source} | {one.when} | {len(rows)} | {first} |")
    return "\n".join(lines)
