"""The traceback that ended a worker, as a file: written by the worker, read by the agent. Torch elastic's form, so
that a script decorated with `@record` and one without leave the same thing."""

import json
import os
import time
import traceback
from pathlib import Path
from types import TracebackType

from holdfast.base import bounds, files, private

LIMIT = 1 << 20
"""Bytes read of an error file: a script may write what it likes into it."""


def write(path: str, error: BaseException, trace: TracebackType | None) -> None:
    """Write the traceback, unless the script itself has left one. Never raises OSError: this is a dying process."""
    text = "".join(traceback.format_exception(type(error), error, trace))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        if os.path.exists(path) and os.path.getsize(path):
            return
        part = f"{path}.{os.getpid()}.part"
        private.write_text(Path(part), json.dumps({"message": {"message": summary, "extraInfo": extra}}))
        os.rename(part, path)
    except OSError:
        pass


def read(path: str) -> str:
    """The traceback in an error file, or its message when it holds no traceback; "" when there is none."""
    try:
        message = json.loads(files.head(path, LIMIT))["message"]
        if not isinstance(message, str):
            message = str(message.get("extraInfo", {}).get("py_callstack") or message.get("message", ""))
        return bounds.text(message, LIMIT)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
