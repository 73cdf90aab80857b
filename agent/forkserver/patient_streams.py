"""Standard output and error on which a full disk ends nothing: what has no room is dropped."""

import io
import os
import sys
from typing import Any

from holdfast.agent.forkserver.output_memory import FULL


class _Patient(io.FileIO):
    """Raises everything but a full disk."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return memoryview(data).nbytes


def install() -> None:
    """For this process and those that are forked from it. As an interpreter would, after its environment: lines go out
    as they end, and with PYTHONUNBUFFERED everything at once."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, fd in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        before.flush()
        raw = _Patient(fd, "w", closefd=False)
        # A text stream writes through its buffer, but a buffered one keeps it: only the raw file is unbuffered.
        stream = io.TextIOWrapper(
            raw if is_unbuffered else io.BufferedWriter(raw),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=True,
            write_through=is_unbuffered,
        )
        setattr(stream, "mode", "w")  # noqa: B010  # as the interpreter's own has it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
