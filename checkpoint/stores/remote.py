"""What stores behind a network have in common: deadlines, retries, and Hadoop's errors as the system's own.

Every question may be asked again: writes begin from nothing, and where an answer was lost although the thing was done
(a rename, a claim) the caller checks whether its own request did it.
"""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from holdfast.base.retry import Backoff
from holdfast.checkpoint.format.checksum import Buffer

T = TypeVar("T")
PIECE_BYTES = 1 << 20
"""Of a file: what still lies in a core's cache when the client copies it and sums it up."""
BATCH_BYTES = 4 << 20
"""Handed over by one call: each takes two changes of thread."""
_HOLD_S = 0.2
# Java's class names, without their packages, and what they are here.
_KINDS: dict[str, tuple[type[OSError], int]] = {
    "FileNotFoundException": (FileNotFoundError, errno.ENOENT),
    "FileAlreadyExistsException": (FileExistsError, errno.EEXIST),
    "ParentNotDirectoryException": (NotADirectoryError, errno.ENOTDIR),
    "PathIsNotDirectoryException": (NotADirectoryError, errno.ENOTDIR),
    "AccessControlException": (PermissionError, errno.EACCES),
    "DSQuotaExceededException": (OSError, errno.EDQUOT),
    "NSQuotaExceededException": (OSError, errno.EDQUOT),
    "QuotaByStorageTypeExceededException": (OSError, errno.EDQUOT),
}
_FINAL = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EDQUOT, errno.EINVAL)


def hadoop_error(kind: str, text: str) -> OSError:
    """An OSError for Java's exception `kind` (its class), in one line."""
    name = kind.rpartition(".")[2]
    made, number = _KINDS.get(name, (OSError, errno.EIO))
    if "must both be directories" in text:  # a file renamed to where a folder is has no class of its own
        made, number = FileExistsError, errno.EEXIST
    line = text.replace("\\n", "\n").strip().split("\n")[0].strip() or name
    return made(number, line if name in _KINDS or not name else f"{name}: {line}")


def is_final(error: OSError) -> bool:
    """Whether asking again can only give the same answer."""
    return error.errno in _FINAL and not isinstance(error, TimeoutError)


def persist(attempt: Callable[[], T], deadline_s: float, tries: int = 1) -> T:
    """The first result, asking again while the error may pass, for `deadline_s` from the first failure.

    `tries`: at least so many attempts, for those that take longer than that. Raises the last OSError.
    """
    delays = Backoff(initial=0.2, cap=5.0).delays()
    give_up: float | None = None
    count = 0
    while True:
        count += 1
        try:
            return attempt()
        except OSError as error:
            now = time.monotonic()
            give_up = now + deadline_s if give_up is None else give_up
            delay = next(delays)
            if is_final(error) or (count >= tries and now + delay > give_up):
                raise
            time.sleep(delay)


class BoundedCalls:
    """Calls that may hang, made in a thread that is given up when they do. For one caller at a time."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] | None = None
        self._reported: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._what = ""
        """What the call is that was started and not waited for."""

    def __call__(self, call: Callable[[], T], what: str) -> T:
        """The result of `call`. Raises what it raises, TimeoutError after the deadline."""
        self.start(call, what)
        return self.wait()  # type: ignore[no-any-return]  # of the type that `call` gives

    def start(self, call: Callable[[], Any], what: str) -> None:
        """Have `call` made while this thread does something else; `wait` for it before the next."""
        if self._asked is None:
            self._asked, self._reported = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._asked, self._reported), daemon=True, name="hdfs").start()
        self._what = what
        self._asked.put(call)

    def wait(self) -> Any:
        """The result of the call that was started, None if none was. Raises as `__call__`; the deadline begins now."""
        if self._asked is None or not self._what:
            return None
        what, self._what = self._what, ""
        try:
            result, error = self._reported.get(timeout=self.timeout_s)
        except queue.Empty:
            self.close()
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {self.timeout_s:g} s to {what}") from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the thread end when its call does."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None


def _serve(
    asked: queue.SimpleQueue[Callable[[], Any] | None], reported: queue.SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    while (call := asked.get()) is not None:
        try:
            reported.put((call(), None))
        except BaseException as error:  # a panic in native code is no Exception
            reported.put((None, error))


def cut(content: Iterable[Buffer], clock: Callable[[], float] = time.monotonic) -> Iterator[bytes]:
    """Pieces of a size that a network call can be made of, so that progress has a deadline and not the whole.

    Small ones are put together, unless they come so slowly that the other end would wonder. What is `bytes` of about
    the right size already is not copied.
    """
    held: list[memoryview] = []
    size, began = 0, clock()
    for piece in content:
        view = memoryview(piece).cast("B")
        if isinstance(view.obj, bytes) and PIECE_BYTES // 2 <= len(view.obj) == len(view) <= PIECE_BYTES:
            if size:
                yield b"".join(held)
            yield view.obj
            held, size, began = [], 0, clock()
            continue
        while view:
            part, view = view[: PIECE_BYTES - size], view[PIECE_BYTES - size :]
            held.append(part)
            size += len(part)
            if size == PIECE_BYTES or clock() - began > _HOLD_S:
                yield b"".join(held)
                held, size, began = [], 0, clock()
    if size:
        yield b"".join(held)


def batched(pieces: Iterable[bytes], clock: Callable[[], float] = time.monotonic) -> Iterator[list[bytes]]:
    """Some pieces at a time, as many as come within a moment."""
    held: list[bytes] = []
    size, began = 0, clock()
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BATCH_BYTES or clock() - began > _HOLD_S:
            yield held
            held, size, began = [], 0, clock()
    if held:
        yield held
