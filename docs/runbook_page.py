"""The runbook and the alerts as one HTML page, which the controller serves at `/runbook`. Pure."""

import html
import re
from collections.abc import Mapping

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARK = re.compile(r"<!-- .*? -->\n?", re.DOTALL)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def to_html(pages: Mapping[str, str]) -> str:
    """Of Markdown by file name. Links to one of the pages stay within; other relative links become text, because the
    controller has no other pages of the documentation."""
    parser = MarkdownIt("js-default", {"html": False})
    parts = []
    for text in pages.values():
        tokens = parser.parse(_MARK.sub("", text))
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                token.attrSet("id", slug(_text(tokens[at + 1])))
            if token.type == "inline" and token.children:
                token.children = _links(token.children, pages)
        parts.append(f"<article>\n{parser.renderer.render(tokens, parser.options, {})}</article>\n")
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape('Holdfast: runbook')}</title>\n</head>\n<body>\n<main>\n"
    )
    return f"{head}{''.join(parts)}</main>\n</body>\n</html>\n"


def _text(heading: Token) -> str:
    return "".join(child.content for child in heading.children or [])


def _links(children: list[Token], pages: Mapping[str, str]) -> list[Token]:
    kept, is_dropped = [], False
    for child in children:
        if child.type == "link_open":
            file, _, anchor = str(child.attrGet("href") or "").partition("#")
            is_outside = "://" in file
            is_dropped = not is_outside and file != "" and file not in pages
            if not is_outside and not is_dropped:
                child.attrSet("href", f"#{anchor or slug(pages[file].splitlines()[0].lstrip('# '))}")
        if is_dropped and child.type in ("link_open", "link_close"):
            continue
        kept.append(child)
    return kept
