"""Sections of text fitted into a terminal: what does not fit is counted. Pure but for the console's width."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.text import Text

SEPARATOR = "  ·  "


@dataclass(frozen=True, slots=True)
class Row:
    line: Text
    items: int = 1
    """How many of the counted things stand on it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Sections stand in the order of their importance."""

    head: Sequence[Text]
    """Always shown, as long as any line fits."""
    rows: Sequence[Row] = ()
    """As many as fit."""
    what: str = "lines"
    """What is counted where not all rows fit: "nodes"."""


def fit(sections: Iterable[Section], height: int | None = None, most: int | None = None) -> Group:
    """All lines, at most `height`. `most`: rows of a section at most."""
    known = list(sections)
    lines = [line for section, count in zip(known, _counts(known, height, most), strict=True)
             for line in _shown(section, count)]  # fmt: skip
    if height is not None and len(lines) > height:
        lines = [*lines[: height - 1], _more(len(lines) - height + 1, "lines")]
    return Group(*lines)


def _counts(sections: list[Section], height: int | None, most: int | None) -> list[int]:
    """Lines for the rows of each section, the one that counts the rest among them."""
    wanted = [min(len(section.rows), most or len(section.rows)) for section in sections]
    if height is None:
        return wanted
    counts = [min(count, 1) for count in wanted]  # each section with rows shows at least how many there are
    spare = height - sum(counts) - sum(len(section.head) for section in sections)
    for i, count in enumerate(wanted):
        more = min(count - counts[i], max(spare, 0))
        counts[i] += more
        spare -= more
    return counts


def _shown(section: Section, count: int) -> list[Text]:
    rows = section.rows
    if count >= len(rows):
        return [*section.head, *(row.line for row in rows)]
    kept, rest = rows[: max(count - 1, 0)], rows[max(count - 1, 0) :]
    left = [_more(sum(row.items for row in rest), section.what)] if count else []
    return [*section.head, *(row.line for row in kept), *left]


def _more(count: int, what: str) -> Text:
    return Text(f"  … {count:,} more {what if count != 1 else what.removesuffix('s')}", style="dim", no_wrap=True)


def lines_of(console: Console, shown: RenderableType, indent: int = 0, most: int | None = None) -> list[Text]:
    """The lines that this is at the console's width. Of more than `most` the last kept one ends in an ellipsis."""
    width = max(console.width - indent, 10)
    options = console.options.update(width=width, height=None)
    lines = [
        Text.assemble(
            " " * indent, *((part.text, part.style or "") for part in line), no_wrap=True, overflow="ellipsis"
        )
        for line in console.render_lines(shown, options, pad=False)
    ]
    for line in lines:
        line.rstrip()
    if most is not None and len(lines) > most:
        lines = lines[:most]
        lines[-1] = Text.assemble(lines[-1][: width + indent - 2], " …", no_wrap=True)
    return lines


def single(markup: str) -> Text:
    """One line that is cut at the width of the terminal."""
    line = Text.from_markup(markup, emoji=False)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def flow(console: Console, facts: Iterable[str], indent: int = 0) -> list[Text]:
    """Facts beside each other, as many to a line as fit; a longer one is folded."""
    width = max(console.width - indent, 10)
    lines: list[str] = []
    for fact in facts:
        joined = f"{lines[-1]}{SEPARATOR}{fact}" if lines else fact
        if lines and Text.from_markup(joined, emoji=False).cell_len <= width:
            lines[-1] = joined
        else:
            lines.append(fact)
    return [line for text in lines for line in lines_of(console, Text.from_markup(text, emoji=False), indent)]


def cells(console: Console, parts: Sequence[str], indent: int = 0) -> list[Row]:
    """Short markup in as many equal columns as the width holds."""
    texts = [Text.from_markup(part, emoji=False) for part in parts]
    wide = max((text.cell_len for text in texts), default=0) + 2
    per_line = max((console.width - indent + 2) // wide, 1)
    rows = []
    for start in range(0, len(texts), per_line):
        line = Text(" " * indent, no_wrap=True, overflow="ellipsis")
        for text in texts[start : start + per_line]:
            line.append_text(text).append(" " * (wide - text.cell_len))
        line.rstrip()
        rows.append(Row(line, len(texts[start : start + per_line])))
    return rows
