"""Structured logs on standard error: a name and fields, as a line for people or as JSON for machines.

`event("worker_exited", rank=3, code=-9)`: no prose that must be parsed later. Info: a state changed; warning: we
will act; error: a person must act. Standard output stays free for results.
"""

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TextIO

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

_LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
_logger = logging.getLogger("holdfast")


def event(name: str, /, **fields: object) -> None:
    """One log line that says: this changed. Costs next to nothing when the level is off; fields may hold anything."""
    _emit(INFO, name, fields)


def debug(name: str, /, **fields: object) -> None:
    _emit(DEBUG, name, fields)


def warning(name: str, /, **fields: object) -> None:
    _emit(WARNING, name, fields)


def error(name: str, /, **fields: object) -> None:
    _emit(ERROR, name, fields)


def exception(name: str, /, **fields: object) -> None:
    """An error with the traceback of the exception that is being handled."""
    _emit(ERROR, name, fields, traceback=True)


def _emit(level: int, name: str, fields: dict[str, object], traceback: bool = False) -> None:
    if _logger.isEnabledFor(level):
        _logger.log(level, name, exc_info=traceback, extra={"fields": fields})


def configure(
    *,
    verbose: bool = False,
    stream: TextIO | None = None,
    env: Mapping[str, str] | None = None,
    daemon: bool = True,
) -> None:
    """Set up the process's log once. HOLDFAST_LOG_LEVEL (debug, info, warning, error) and HOLDFAST_LOG_FORMAT
    (console, json) rule; by default JSON for a daemon whose log is no terminal. `verbose` means debug."""
    env = os.environ if env is None else env
    stream = sys.stderr if stream is None else stream
    level = DEBUG if verbose else _LEVELS.get(env.get("HOLDFAST_LOG_LEVEL", "info").lower(), INFO)
    wanted = env.get("HOLDFAST_LOG_FORMAT", "").lower()
    as_json = wanted == "json" or (wanted != "console" and daemon and not stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLine() if as_json else _ConsoleLine(colour=stream.isatty()))
    _logger.handlers[:] = [handler]
    _logger.setLevel(level)
    _logger.propagate = False


_CONTROLS = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, and JSON leaves as they are."""


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": record.process,
        }
        line |= {key: _plain(value) for key, value in getattr(record, "fields", {}).items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, default=str, ensure_ascii=False)
        return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _ConsoleLine(logging.Formatter):
    def __init__(self, colour: bool) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {key}={_word(value)}" for key, value in getattr(record, "fields", {}).items())
        name = record.getMessage()
        if self.colour and record.levelname in _COLOURS:
            name = f"{_COLOURS[record.levelname]}{name}\x1b[0m"
        line = f"{clock}.{int(record.msecs):03d} {record.levelname[0]} {name}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _plain(value: object) -> object:
    """JSON has no NaN and no infinity; strict readers refuse a line that holds one."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    return value


def _word(value: object) -> str:
    """A field on one line, quoted if need be: a worker's text must not be able to forge a log line."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    printable = text.isprintable() and text and not any(c in text for c in ' "=')
    return text if printable else json.dumps(text)
