"""The file of a recording, plain or compressed: each run of the controller appends to it, also where the one before
was killed while it wrote.
"""

import contextlib
import gzip
import io
import mmap
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from holdfast.base import private
from holdfast.base.errors import UsageError

_HEAD = b'{"holdfast":'
"""How a recording begins."""
_MAGIC = b"\x1f\x8b\x08"
_GZIP = re.compile(rb"(\x1f\x8b\x08(?:\0|(\x08))).{4}(..(?(2)[^\0]+\0))", re.DOTALL)
"""What a compressed file begins with: what is the same for each run, its time, and again the same (RFC 1952, 2.3)."""
_GZIP_BYTES = 10 + 255 + 1
"""No more than that, of which up to 255 are the name's."""
_PAGE = 4096
_LINE_BYTES = 256 << 20
"""No line is longer: the first one holds all that the journal had."""


def go_on(path: Path) -> IO[bytes]:
    """Open it to append a run: plain, or compressed if the name ends with .gz. UsageError in one line otherwise."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"recording {path}: not a regular file; name a new file")
        private.make_file(path)
        _mend(path)
        return gzip.open(path, "ab") if path.suffix == ".gz" else open(path, "ab")  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(f"recording {path}: {error.strerror or error}; name a file that can be written") from None


def _mend(path: Path) -> None:
    """Leave out the cut line of a run that was killed, so that this one does not begin within it.

    UsageError for a file with something else in it, to which nothing is appended.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = _kept(content, path.suffix == ".gz")
        if end is None:
            raise UsageError(f"recording {path}: it has other content; name another file")
        os.ftruncate(file.fileno(), end)


def _kept(content: mmap.mmap, is_compressed: bool) -> int | None:
    """How much of a recording may stay, in bytes; None if it is none."""
    if not is_compressed:
        return content.rfind(b"\n") + 1 if _begins(content[: len(_HEAD)]) else None
    runs = _starts(content, 2 * _PAGE)
    if runs is None:
        is_cut_off = len(content) <= _GZIP_BYTES and content[: len(_MAGIC)] == _MAGIC[: len(content)]
        return 0 if is_cut_off else None
    next(runs)
    with contextlib.suppress(zlib.error):
        first = content[: next(runs, _PAGE)]
        if _begins(zlib.decompressobj(wbits=31).decompress(first, len(_HEAD))):
            return len(content)
    return None


def _begins(text: bytes) -> bool:
    return text == _HEAD[: len(text)]


def lines(path: Path) -> Iterator[bytes]:
    """The lines of all runs, as far as each was written. UsageError in one line when the file cannot be read."""
    with _opened(path) as file:
        if path.suffix != ".gz":
            while line := file.readline(_LINE_BYTES):
                if len(line) == _LINE_BYTES:
                    raise UsageError(f"recording {path}: damaged or foreign: a line of {_LINE_BYTES >> 20} MiB or more")
                yield line
            return
        for life in _runs(file):
            try:
                yield from gzip.GzipFile(fileobj=io.BytesIO(life))
            except EOFError:
                continue  # it was killed
            except (gzip.BadGzipFile, zlib.error) as error:
                raise UsageError(f"recording {path}: damaged, or not compressed as its name says: {error}") from None


def _opened(path: Path) -> IO[bytes]:
    right = "`holdfast controller --record FILE` writes one"
    try:
        # A pipe without a writer would block for ever.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise UsageError(f"recording {path}: {error.strerror or error}; {right}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"recording {path}: not a regular file; {right}")
    return file


def _runs(file: IO[bytes]) -> Iterator[bytes]:
    """The parts of a compressed recording, each as one run has written it: with the same head but for the time.

    One that was killed has left its part without an end, after which nothing can be read as one with it.
    """
    if not os.fstat(file.fileno()).st_size:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        ends = _starts(content, len(content)) or iter(())
        start = next(ends, 0)
        for end in [*ends, len(content)]:
            yield content[start:end]
            start = end


def _starts(content: mmap.mmap, until: int) -> Iterator[int] | None:
    """Where each run's part begins, of the first bytes; None if nothing compressed begins here."""
    head = _GZIP.match(content)
    if head is None:
        return None
    same = re.compile(re.escape(head[1]) + b".{4}" + re.escape(head[3]), re.DOTALL)
    return (found.start() for found in same.finditer(content, 0, until))
