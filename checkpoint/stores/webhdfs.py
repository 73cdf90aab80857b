"""A store in HDFS over HTTP, through the package `hdfs`: for where only WebHDFS or HttpFS can be reached.

Renames go with an explicit option: without one WebHDFS moves a folder *into* an existing target and says that all
is well. What the package lacks by default it is given here: time-outs, and uploads that can begin anew.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.errors import StoreUnsupported
from holdfast.checkpoint.stores.remote import cut, hadoop_error, persist
from holdfast.checkpoint.stores.store import Content, inside

T = TypeVar("T")
_CONNECT_S = 5.0
_UPLOADS = 3


class WebHdfsStore:
    """A folder in HDFS: webhdfs://[user@]host:port[,host:port]/folder; several hosts are NameNodes of one system."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        """`timeout_s`: silent for so long, a call has failed. Raises StoreUnsupported without the library."""
        try:
            import hdfs
            import requests
        except ImportError:
            needs = "this needs hdfs: pip install 'holdfast[hdfs]'"
            raise StoreUnsupported(f"checkpoint store {url!r}: {needs}") from None
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        user = unquote(user) or os.environ.get("HADOOP_USER_NAME") or _own_name(url)
        self.timeout_s = timeout_s
        self._errors: tuple[type[Exception], type[Exception]] = (hdfs.HdfsError, requests.RequestException)
        servers = ";".join(f"http://{host}" for host in hosts.split(","))
        self._client: Any = hdfs.InsecureClient(servers, user=user, timeout=(_CONNECT_S, timeout_s))
        self._root = PurePosixPath(unquote(parts.path))
        self._url = f"webhdfs://{parts.netloc}{parts.path.rstrip('/')}"

    @property
    def url(self) -> str:
        return self._url

    def list(self, path: str = "") -> list[str]:
        where = self._at(path)
        try:
            answer = self._ask(lambda: self._client._list_status(where).json())
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries = answer["FileStatuses"]["FileStatus"]
        # A file is listed as itself, with no name.
        named = [entry for entry in entries if entry["pathSuffix"]]
        return sorted(entry["pathSuffix"] + ("/" if entry["type"] == "DIRECTORY" else "") for entry in named)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        where = self._at(path)

        def content() -> bytes:
            with self._client.read(where, offset=start, length=length) as reader:
                return bytes(reader.read())

        if length == 0:
            return b""
        return self._ask(content)

    def size(self, path: str) -> int:
        return int(self._ask(lambda: self._client.status(self._at(path)))["length"])

    def make_folder(self, path: str) -> None:
        self._ask(lambda: self._client.makedirs(self._at(path)))

    def create(self, path: str, content: Content) -> None:
        where = self._at(path)
        # WebHDFS makes parents that are missing; below a file it cannot, which is what fences rest on.
        self._ask(lambda: self._client.write(where, data=_bytes(content), overwrite=True), tries=_UPLOADS)

    def claim(self, path: str, content: bytes) -> None:
        self._put(path, content, "NONE")

    def replace(self, path: str, content: bytes) -> None:
        self._put(path, content, "OVERWRITE")

    def rename(self, old: str, new: str) -> None:
        self._rename(self._at(old), self._at(new), "NONE")

    def remove(self, path: str) -> None:
        self._ask(lambda: self._client.delete(self._at(path), recursive=True))

    def _put(self, path: str, content: bytes, option: str) -> None:
        target = PurePosixPath(self._at(path))
        aside = str(target.with_name(f".{target.name}.{uuid.uuid4().hex}"))
        self._ask(lambda: self._client.write(aside, data=content, overwrite=True))
        try:
            self._rename(aside, str(target), option)
        except FileExistsError:
            self._ask(lambda: self._client.delete(aside))
            raise

    def _rename(self, old: str, new: str, option: str) -> None:
        self._ask(lambda: self._client._rename(old, destination=new, renameoptions=option))

    def _ask(self, call: Callable[[], T], tries: int = 1) -> T:
        def attempt() -> T:
            try:
                return call()
            except self._errors[0] as error:
                raise hadoop_error(str(getattr(error, "exception", "") or ""), str(error)) from None
            except self._errors[1] as error:
                raise OSError(errno.EIO, _short(error)) from None
            except (json.JSONDecodeError, KeyError) as error:
                raise OSError(errno.EPROTO, f"not an answer of WebHDFS: {error}") from None

        return persist(attempt, self.timeout_s, tries)

    def _at(self, path: str) -> str:
        return str(self._root / inside(path)) if path else str(self._root)


def _own_name(url: str) -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise StoreUnsupported(f"checkpoint store {url!r}: this user has no name: write user@host") from None


def _bytes(content: Content) -> Iterator[bytes]:
    return cut(content())


def _short(error: Exception) -> str:
    """The innermost reason of an error of requests, in one line."""
    cause: Any = error
    while getattr(cause, "args", None) and isinstance(cause.args[0], Exception):
        cause = cause.args[0]
    reason = getattr(cause, "reason", None) or cause
    return " ".join(str(reason).split())[:200]
