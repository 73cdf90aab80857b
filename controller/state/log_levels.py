"""The level of a line of a worker's log, and what makes two lines the same. Pure, and linear in the length of a line.

Known are the formats of Python's logging and warnings, of torch ("[rank3]:[W1125 ...]"), glog ("E1125 ..."), NCCL
("NCCL WARN"), Rust's and Go's loggers, and JSON with a field `level`. A traceback is an error from its first line to
the exception that ends it. A line that says nothing of its level is information.
"""

import json
import re
from enum import IntEnum

_NEAR = 160  # characters: a level stands at the beginning of a line
_LETTER = re.compile(r"(?:^|\])\[?([DIWEFC])(?:\d{4}|[ \d]{0,3}\d\d:\d\d)[ .\]]")
_WORD = re.compile(r"\b(?:(DEBUG|TRACE)|(INFO|NOTICE)|(WARN|WARNING)|(ERROR|CRITICAL|FATAL|PANIC))\b")
_WARNED = re.compile(r"\.py:\d+: \w*Warning: ")
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|$)")
_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_MASKED = re.compile(r"0x[0-9a-fA-F]+|\d+(?:[.:,]\d+)*")


class Level(IntEnum):
    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


_OF_LETTERS = {
    "D": Level.DEBUG,
    "I": Level.INFO,
    "W": Level.WARNING,
    "E": Level.ERROR,
    "F": Level.ERROR,
    "C": Level.ERROR,
}
_OF_GROUPS = (Level.DEBUG, Level.INFO, Level.WARNING, Level.ERROR)


class LevelJudge:
    """Of one stream of one rank: what belongs to a traceback depends on the lines before."""

    def __init__(self) -> None:
        self._inside = False

    def level(self, line: str) -> Level:
        text = _PREFIX.sub("", line[: 4 * _NEAR])
        if text.lstrip().startswith(_TRACEBACK):
            self._inside = True
            return Level.ERROR
        if self._inside:
            # Its frames are indented; the exception is not, and ends it.
            self._inside = text.startswith((" ", "\t")) or not text.strip()
            if self._inside or _RAISED.match(text):
                return Level.ERROR
        return _of_one(text)


def _of_one(text: str) -> Level:
    if text.startswith("{") and (named := _of_json(text)) is not None:
        return named
    near = text[:_NEAR]
    if found := _LETTER.search(near):
        return _OF_LETTERS[found[1]]
    if found := _WORD.search(near):
        return _OF_GROUPS[(found.lastindex or 1) - 1]
    if _RAISED.match(near):
        return Level.ERROR
    return Level.WARNING if _WARNED.search(text) else Level.INFO


def _of_json(text: str) -> Level | None:
    try:
        named = json.loads(text).get("level")
    except (ValueError, AttributeError, RecursionError):
        return None
    found = _WORD.fullmatch(str(named).upper())
    return _OF_GROUPS[(found.lastindex or 1) - 1] if found else None


def masked(line: str) -> str:
    """The line without its numbers, addresses and times: what all ranks that said the same have in common."""
    return _MASKED.sub("#", _PREFIX.sub("", line)).strip()
