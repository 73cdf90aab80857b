"""Text from outside (names, errors, a worker's output) made harmless for a terminal.

A name that holds an escape sequence could colour, move, hide or rename what a terminal shows: everything that is no
printable character is shown as an escape instead. Programs get their text elsewhere, in JSON, where it stays as it is.
"""

import re
import sys

MAX_WORD = 240
"""Longer words of an error are cut in the middle: a path of 4,000 characters is of no use."""

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)}
# Those that turn the direction of what follows, or end a line without a newline's code.
_CONTROLS |= {0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF}
_UNSAFE = re.compile("[" + "".join(map(chr, sorted(_CONTROLS))) + "]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_LONG = re.compile(rf"\S{{{MAX_WORD + 1},}}")


def plain(text: object) -> str:
    r"""The text with each control character as an escape.

    >>> plain("node\x1b[31m\n")
    'node\\x1b[31m\\n'
    """
    return _UNSAFE.sub(_escape, str(text))


def one_line(text: object) -> str:
    """An error in one line: words apart by one space, cut where they are very long, without control characters."""
    return _LONG.sub(lambda word: f"{word[0][:120]}...{word[0][-40:]}", plain(" ".join(str(text).split())))


def coloured(text: str) -> str:
    r"""A worker's line for a terminal: colours stay, and end with the line; so do tabs and a progress bar's returns.

    >>> coloured("\x1b[31mred\x1b[2J")
    '\x1b[31mred\\x1b[2J\x1b[0m'
    """
    parts, at = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [_loose(text[at : colour.start()]), colour[0]]
        at = colour.end()
    parts.append(_loose(text[at:]))
    return "".join(parts) + ("\x1b[0m" if len(parts) > 1 else "")


def forgive() -> None:
    """Let standard output and error show what they cannot encode as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a test's stand-in may be no file
            stream.reconfigure(errors="backslashreplace")


def _loose(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0] if found[0] in "\t\r" else _escape(found), text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
