"""Is a store there at all? Asked once before a command begins, with little patience.

Saving and restoring ask for `timeout_s` and longer, since a NameNode that fails over comes back. A person who named the
wrong host should know within seconds.
"""

from __future__ import annotations

import errno
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.errors import StoreMissing, StoreUnsupported
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.remote import BoundedCalls, is_final

REACH_S = 7.0
_REMOTE = ("hdfs", "webhdfs")


def reach(url: str, within_s: float = REACH_S) -> None:
    """Return once the store has answered. OSError of one line: which host was asked, for how long, and why it failed.

    Of a store on this host nothing is asked. Raises StoreUnsupported as `open_store` does.
    """
    store = open_store(url, max(0.2, within_s - 1.0))
    parts = urlsplit(url)
    if parts.scheme not in _REMOTE:
        return
    try:
        BoundedCalls(within_s)(lambda: store.list(""), "a listing")
    except OSError as error:
        if is_final(error):
            raise
        hosts = parts.netloc.rpartition("@")[2].replace(",", " and ")
        raise OSError(
            errno.EHOSTUNREACH,
            f"no {parts.scheme} NameNode answers at {hosts} within {within_s:g} s: "
            f"{error.strerror or error}; check host and port, and whether it runs",
        ) from None


def check_there(url: str) -> None:
    """StoreMissing if the folder of the store does not exist: it would look like a store without checkpoints.

    For commands that read or remove; those that write create the folder. OSError as from `Store.list`.
    """
    store = open_store(url)
    if isinstance(store, FileStore):
        if not store.root.is_dir():
            what = "is no folder" if store.root.exists() else "there is no such folder"
            raise StoreMissing(f"checkpoint store {url}: {what}")
        return
    if store.list(""):
        return
    parent, _, name = url.rstrip("/").rpartition("/")
    try:
        above = open_store(parent)
    except StoreUnsupported:
        return  # a folder of the root, which no store is: the listing says no more
    if f"{unquote(name)}/" not in above.list(""):
        raise StoreMissing(f"checkpoint store {url}: there is no such folder")
