"""The table of docs/techniques.md, made of the very rows that `holdfast rows` checks."""

import subprocess
import sys

from holdfast.trainer.rows.table import TECHNIQUES


def table() -> str:
    """Made in a process of its own: rows count what a process does, and this one may have done other things before."""
    done = subprocess.run([sys.executable, __file__], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.rstrip("\n")


def made() -> str:
    lines = ["| id | technique | source | choose it when | rows | the first: expected, measured |", "|" + " --- |" * 6]
    for one in TECHNIQUES.values():
        rows = list(one.check())
        wrong = [row.what for row in rows if not row.passes]
        assert not wrong, f"{one.id}: {wrong}"
        first = f"{rows[0].what}: {rows[0].expected:g}, {rows[0].measured:g}"
        lines.append(f"| {one.id} | {one.name} | {one.source} | {one.when} | {len(rows)} | {first} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(made())
