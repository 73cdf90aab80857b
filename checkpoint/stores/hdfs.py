"""A store in HDFS by its native protocol, through `hdfs-native`: no Java beside the trainer.

The NameNode does a rename or a create as one change of its own records, seen by all clients at once and logged before
it answers: what `claim`, `replace` and `rename` of a store need. The client recovers a pipeline that lost a DataNode;
if it cannot, the file is written again from the beginning. The last block is synced to the DataNodes' disks.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.errors import StoreUnsupported
from holdfast.checkpoint.stores.folder import TRASH
from holdfast.checkpoint.stores.hedged import first_of
from holdfast.checkpoint.stores.remote import BoundedCalls, batched, cut, hadoop_error, is_final, persist
from holdfast.checkpoint.stores.store import Content, inside

T = TypeVar("T")
_RPC_ERROR = re.compile(r'RPCError\("([^"]*)", "(.*?)(?:\\n\\tat |"\)|$)', re.DOTALL)
_UPLOADS = 3
# The client asks the NameNode to close a file as soon as a DataNode has its last bytes, and again half a second later
# if the NameNode has not heard of them by then: one small file in five, or two in three, where all is quiet.
_CLOSE_PATIENCE_S = 0.05
_CLOSE_COPIES = 3
_SMALL_BYTES = 1 << 20


class HdfsStore:
    """A folder in HDFS: hdfs://host:port/folder, or hdfs://nameservice/folder with Hadoop's configuration."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        """`timeout_s`: without progress for so long, a call has failed. Raises StoreUnsupported without the library."""
        try:
            import hdfs_native
        except ImportError:
            needs = "this needs hdfs_native: pip install 'holdfast[hdfs]'"
            raise StoreUnsupported(f"checkpoint store {url!r}: {needs}") from None
        parts = urlsplit(url)
        self.timeout_s = timeout_s
        self._options: Any = hdfs_native.WriteOptions
        self._native = hdfs_native.Client
        self._at_host = f"hdfs://{parts.netloc}"
        self._root = PurePosixPath(unquote(parts.path))
        self._url = f"{self._at_host}{parts.path.rstrip('/')}"
        self._open: hdfs_native.Client | None = None
        self._reading: tuple[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    def list(self, path: str = "") -> list[str]:
        where = self._at(path)

        def names() -> list[str]:
            found = [(entry.path, entry.isdir) for entry in self._client().list_status(where)]
            # A file is listed as itself; below a folder paths are longer.
            return sorted(PurePosixPath(p).name + ("/" if is_folder else "") for p, is_folder in found if p != where)

        try:
            return self._ask(names, f"list {where}")
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        where = self._at(path)

        def content() -> bytes:
            reader = self._client().read(where) if length is None else self._reader(where)
            left = max(len(reader) - start, 0)
            wanted = left if length is None else min(length, left)  # the library panics past the end
            return reader.read_range(start, wanted) if wanted else b""

        return self._ask(content, f"read {where}")

    def size(self, path: str) -> int:
        where = self._at(path)
        return int(self._ask(lambda: self._client().get_file_info(where).length, f"look at {where}"))

    def make_folder(self, path: str) -> None:
        where = self._at(path)
        self._ask(lambda: self._client().mkdirs(where, create_parent=True), f"make {where}")

    def create(self, path: str, content: Content) -> None:
        persist(lambda: self._write(self._at(path), content), self.timeout_s, tries=_UPLOADS)

    def claim(self, path: str, content: bytes) -> None:
        self._put(path, content, overwrite=False)

    def replace(self, path: str, content: bytes) -> None:
        self._put(path, content, overwrite=True)

    def rename(self, old: str, new: str) -> None:
        source, target = self._at(old), self._at(new)
        self._ask(lambda: self._client().rename(source, target, False), f"rename {source}")

    def remove(self, path: str) -> None:
        where = self._at(path)
        self._ask(lambda: self._client().delete(where, True), f"remove {where}")

    def _put(self, path: str, content: bytes, overwrite: bool) -> None:
        try:
            self._put_once(path, content, overwrite)
        except FileNotFoundError:  # a claim has swept what lay ready, or there is no such folder
            self._put_once(path, content, overwrite)

    def _put_once(self, path: str, content: bytes, overwrite: bool) -> None:
        target = self._at(path)
        asides: list[str] = []
        over = threading.Event()

        def write(closing: Callable[[], None]) -> str:
            # Not beside the target: a folder may get its own name while one that came too late is still in it.
            aside = str(self._root / f"{TRASH}{uuid.uuid4().hex}")
            asides.append(aside)

            def attempt() -> None:
                if over.is_set():
                    raise FileNotFoundError(errno.ENOENT, "removed: another client was faster", aside)
                self._write(aside, lambda: [content], closing)

            persist(attempt, self.timeout_s)
            return aside

        copies = _CLOSE_COPIES if len(content) <= _SMALL_BYTES else 1
        try:
            aside = first_of(write, self._drop, _CLOSE_PATIENCE_S, copies)
            self._ask(lambda: self._client().rename(aside, target, overwrite), f"rename to {target}")
            asides.remove(aside)
        except OSError as error:
            if not is_final(error):
                asides.clear()  # a server that does not answer is not asked to clean up
            raise
        finally:
            over.set()
            for left in tuple(asides):
                self._drop(left)

    def _drop(self, aside: str) -> None:
        """Once: the next claim sweeps what stays."""
        with contextlib.suppress(OSError), self._calls() as calls:
            calls(lambda: self._client().delete(aside, False), f"remove {aside}")

    def _write(self, where: str, content: Content, closing: Callable[[], None] = lambda: None) -> None:
        """`closing` is called when all has been written and only the end of the file is not known yet."""
        options = self._options(overwrite=True, create_parent=False)
        with self._calls() as calls:
            # Not the library's file object: dropping that closes it, which blocks until the NameNode answers.
            writer = calls(lambda: self._client().inner.create(where, options), f"create {where}")
            # As bytes: of anything else the library converts each one, five times slower.
            for pieces in batched(cut(content())):
                # What comes next is read and summed up while this is on its way.
                calls.wait()
                calls.start(partial(_write_all, writer, pieces), f"write {where}")
            calls.wait()
            calls(partial(_sync, writer), f"sync {where}")
            closing()
            calls(writer.close, f"close {where}")

    def _ask(self, call: Callable[[], T], what: str) -> T:
        def attempt() -> T:
            with self._calls() as calls:
                return calls(call, what)

        return persist(attempt, self.timeout_s)

    def _calls(self) -> contextlib.closing[_Calls]:
        return contextlib.closing(_Calls(self.timeout_s, self._clear))

    def _reader(self, where: str) -> Any:
        """Knows where the blocks of a file are: what is read in pieces is not written any more, so one answer does."""
        with self._lock:
            known = self._reading
        if known is None or known[0] != where:
            known = (where, self._client().read(where))
            with self._lock:
                self._reading = known
        return known[1]

    def _client(self) -> Any:
        with self._lock:
            if self._open is None:
                self._open = self._native(self._at_host)
            return self._open

    def _at(self, path: str) -> str:
        return str(self._root / inside(path)) if path else str(self._root)

    def _clear(self, error: Exception) -> OSError:
        """As an OSError of one line."""
        with self._lock:
            self._reading = None  # its blocks may have moved
        if isinstance(error, TimeoutError):
            with self._lock:
                self._open = None  # its connection may never answer again
            return error
        text = str(error)
        if isinstance(error, FileNotFoundError | FileExistsError | NotADirectoryError | PermissionError):
            number = {FileNotFoundError: errno.ENOENT, FileExistsError: errno.EEXIST}.get(type(error), error.errno)
            return type(error)(number, text.split("\n")[0])
        reported = _RPC_ERROR.search(text)
        return hadoop_error(reported[1], reported[2]) if reported else hadoop_error("", text)


class _Calls(BoundedCalls):
    """Of the library, whose errors are OSErrors here."""

    def __init__(self, timeout_s: float, clear: Callable[[Exception], OSError]) -> None:
        super().__init__(timeout_s)
        self._clear = clear

    def wait(self) -> Any:
        try:
            return super().wait()
        except Exception as error:
            raise self._clear(error) from None


def _write_all(writer: Any, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)


def _sync(writer: Any) -> None:
    try:
        writer.hsync()
    except Exception as error:
        if "rasure" not in str(error):  # erasure-coded files cannot, and are durable when closed
            raise
