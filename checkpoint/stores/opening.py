"""A store by its URL."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.base.address import parse_address
from holdfast.base.errors import UsageError
from holdfast.base.files import expand
from holdfast.checkpoint.errors import StoreUnsupported
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.store import Store


def open_store(url: str, timeout_s: float = 30.0) -> Store:
    """Open the store that `url` names: file:///path or a plain path, hdfs://host:port/path, webhdfs://host:port/path.

    `timeout_s`: how long a store behind a network is asked again before a failure counts. Raises StoreUnsupported
    for any other scheme. Creates nothing, and sends no request.
    """
    if not url.strip():
        raise StoreUnsupported("checkpoint store '': names nothing; use file:///path, hdfs:// or webhdfs://")
    if "://" not in url and url.startswith(("file:", "hdfs:", "webhdfs:")):
        raise StoreUnsupported(f"checkpoint store {url!r}: write file:///path, hdfs://host:port/path or webhdfs://...")
    try:
        if "://" not in url:
            return FileStore(expand(url).absolute())
        parts = urlsplit(url)
        folder = expand(unquote(parts.path, errors="surrogateescape"))
    except ValueError as error:  # brackets around no address, a NUL, an unknown user's home folder
        raise StoreUnsupported(f"checkpoint store {url!r}: {error}") from None
    if parts.scheme in ("hdfs", "webhdfs"):
        _check_hosts(url, parts)
        if parts.scheme == "hdfs":
            from holdfast.checkpoint.stores.hdfs import HdfsStore

            return HdfsStore(url, timeout_s)
        from holdfast.checkpoint.stores.webhdfs import WebHdfsStore

        return WebHdfsStore(url, timeout_s)
    if parts.scheme != "file":
        raise StoreUnsupported(
            f"checkpoint store {url!r}: no such scheme {parts.scheme!r}; use file:///path, hdfs:// or webhdfs://"
        )
    if parts.netloc not in ("", "localhost"):
        raise StoreUnsupported(f"checkpoint store {url!r}: a file URL has three slashes, as in file:///path")
    if not parts.path.strip("/"):
        raise StoreUnsupported(f"checkpoint store {url!r}: names no folder; use file:///path")
    return FileStore(folder)


def check_place(url: str) -> None:
    """UsageError where a folder can never be the store, for something on its way is none. Sends no request: a store
    that is down may be back."""
    store = open_store(url)
    if not isinstance(store, FileStore):
        return
    for place in (store.root, *store.root.parents):
        if os.path.isdir(place):
            return
        if (never := _never_a_folder(place)) is not None:
            raise UsageError(f"checkpoint.store {store.url}: {os.strerror(never)}: name a store that can be written")


def _never_a_folder(place: Path) -> int | None:
    """The error that it will always give. None: nothing is there, or what a link names may come, as a mount does."""
    try:
        os.stat(place)
    except OSError as error:
        return error.errno if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR) else None
    return errno.ENOTDIR


def _check_hosts(url: str, parts: SplitResult) -> None:
    """StoreUnsupported for hosts that cannot be asked: retries would not help."""
    user, _, hosts = parts.netloc.rpartition("@")
    try:
        unquote(user, errors="strict").encode()
        for host in hosts.split(","):
            parse_address(host, 8020)
        unquote(parts.path, errors="strict").encode()
    except (UsageError, UnicodeError) as error:
        raise StoreUnsupported(
            f"checkpoint store {url!r}: {error}; write {parts.scheme}://host:port/folder in UTF-8"
        ) from None
    if not parts.path.strip("/"):
        raise StoreUnsupported(f"checkpoint store {url!r}: names no folder; write {parts.scheme}://host:port/folder")
