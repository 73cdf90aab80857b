"""The table of docs/techniques.md, made of the very rows that `holdfast rows` checks."""

from holdfast.trainer.rows.table import TECHNIQUES


def table() -> str:
    lines = ["| id | technique | source | choose it when | rows | the first: expected, measured |", "|" + " --- |" * 6]
    for one in TECHNIQUES.values():
        rows = list(one.check())
        wrong = [row.what for row in rows if not row.passes]
        assert not wrong, f"{one.id}: {wrong}"
        first = f"{rows[0].what}: {rows[0].expected:g}, {rows[0].measured:g}"
        lines.append(f"| {one.id} | {one.name} | {one.source} | {one.when} | {len(rows)} | {first} |")
    return "\n".join(lines)
