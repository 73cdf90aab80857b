"""A table as Markdown has it."""

import typing


def table(head: tuple[str, ...], rows: typing.Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- findings and actions ----------------------------------------------------------------------
