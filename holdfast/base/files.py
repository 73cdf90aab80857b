"""Small files that a user named (settings, a token, a certificate), read with a bound and a deadline.

What was named may be anything: a folder, a device without end, a pipe that has no writer. All of that is one line
for the user, and never a process that hangs or takes the machine's memory.
"""

import errno
import os
import select
import stat
import time
import tomllib
from pathlib import Path
from typing import Any

from holdfast.base.errors import UsageError

MAX_BYTES = 1 << 20
DEADLINE_S = 5.0
_PIECE_BYTES = 1 << 16


def read_bytes(path: Path, what: str = "a small file", most: int = MAX_BYTES) -> bytes:
    """The content of a file, or of a pipe (`<(command)` of a shell). UsageError names the file and what is wrong."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read(file, path, what, most)
        finally:
            os.close(file)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL within the name
        raise UsageError(f"{str(path)!r}: {error}; name {what}") from None


def read_text(path: Path, what: str = "a text file", most: int = MAX_BYTES) -> str:
    """As `read_bytes`, of text in UTF-8."""
    content = read_bytes(path, what, most)
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not text in UTF-8 (byte {error.start}): name {what}") from None


def head(path: str | Path, most: int) -> bytes:
    """The first `most` bytes of a file that another program wrote, which may be of any size. OSError for what is no
    regular file: a link is not followed, a pipe not waited for.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        pieces = []
        while most > 0 and (piece := os.read(file, min(most, _PIECE_BYTES))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(file)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """A document in TOML. UsageError names the `source`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: {error}") from None
    except (RecursionError, ValueError):  # lists in lists without end, a number of thousands of digits
        raise UsageError(f"{source}: not TOML: too deep, or with a number that is too long") from None


def expand(text: str) -> Path:
    """The path, with `~` as the home folder. ValueError for a path that no file can have."""
    if "\0" in text:
        raise ValueError("a path cannot hold a NUL")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"nobody's home folder is known for {text!r}") from None


def _read(file: int, path: Path, what: str, most: int) -> bytes:
    content = bytearray()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        ready, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
        if not ready or time.monotonic() > deadline:
            raise UsageError(f"{path}: nothing came within {DEADLINE_S:g} s; name {what}")
        try:
            piece = os.read(file, _PIECE_BYTES)
        except BlockingIOError:
            continue
        content += piece
        if len(content) > most:
            raise UsageError(f"{path}: more than {most >> 10} KiB; name {what}")
        if not piece:
            return bytes(content)
