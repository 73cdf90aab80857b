"""Snapshots of a run in a store: a folder for each, which gets its name when all of it is there.

    step-00000100/server-0-of-2.keys .rows     a server's share
    step-00000100/model.pt                     the parameters that are no tables
    step-00000100/run.json                     what they are, and a checksum of each file
    work-00000100-RUN/                         one that a run is writing, or was when it died
    trash-...                                  on its way out

The first stage copies in memory, between two iterations; the second one writes while training goes on.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np

from holdfast.base.errors import UsageError
from holdfast.checkpoint.errors import PartInvalid
from holdfast.checkpoint.format.arrays import to_bytes
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.stores.folder import TRASH
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.store import Store
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of, server_of
from holdfast.trainer.embeddings.servers.rows import RowStore
from holdfast.trainer.embeddings.servers.tables import Spec, Tables

MANIFEST = "run.json"
MODEL = "model.pt"
_NAME = re.compile(r"step-([0-9]{8,18})/")
_WORK = re.compile(r"work-([0-9]{8,18})-(.+)/")

_BEFORE = {"optimizer": "sgd"}
"""Settings of snapshots that do not name them yet."""

Sums = dict[str, list[int]]
"""By name of a file, its checksums (`holdfast.checkpoint.format.checksum`)."""


def newest(url: str) -> int:
    """Steps done in the newest whole snapshot of a store; 0 without any. OSError."""
    store = open_store(url)
    return next((step for step in _steps(store) if _is_whole(store, step)), 0)


def read_manifest(url: str, step: int) -> dict[str, Any]:
    """The manifest of a snapshot. PartInvalid, OSError."""
    try:
        return _manifest(open_store(url), step)
    except ValueError as error:
        raise PartInvalid(f"{_folder(step)}/{MANIFEST}: {error}") from None


def _manifest(store: Store, step: int) -> dict[str, Any]:
    """ValueError for one that is none, OSError."""
    try:
        found = json.loads(store.read(f"{_folder(step)}/{MANIFEST}"))
        if not isinstance(found["files"], dict) or not isinstance(found["settings"], dict):
            raise ValueError("no files or no settings in it")
    except (KeyError, TypeError) as error:
        raise ValueError(f"no manifest: {error}") from None
    return dict(found)


def _is_whole(store: Store, step: int) -> bool:
    """Whether all files are there that the manifest names. Their content is checked when they are read."""
    try:
        return set(_manifest(store, step)["files"]) <= set(store.list(_folder(step)))
    except (FileNotFoundError, ValueError):
        return False


def _steps(store: Store) -> list[int]:
    """Of folders with a snapshot's name, newest first."""
    return sorted((int(found[1]) for found in map(_NAME.fullmatch, store.list()) if found), reverse=True)


def check_settings(url: str, step: int, settings: dict[str, Any]) -> None:
    """UsageError if a snapshot is of a run that differs in what must stay."""
    theirs = read_manifest(url, step)["settings"]
    for name, value in settings.items():
        if theirs.get(name, _BEFORE.get(name)) != value:
            found = theirs.get(name, _BEFORE.get(name))
            raise UsageError(
                f"the snapshot of step {step} was trained with --{name} {found}, not {value}: give"
                f" --{name} {found}, or another --store"
            )


def write_share(url: str, step: int, run: str, number: int, servers: int, keys: Keys, rows: Rows) -> Sums:
    """Write a server's share; the checksums. OSError."""
    name = f"server-{number}-of-{servers}"
    return {
        **write_file(url, step, run, f"{name}.keys", to_bytes(keys)),
        **write_file(url, step, run, f"{name}.rows", to_bytes(rows)),
    }


def write_file(url: str, step: int, run: str, name: str, content: bytes | memoryview) -> Sums:
    """Write a file of a snapshot that the run of this name takes; its checksums. OSError."""
    store = open_store(url)
    store.make_folder(_work(step, run))
    store.create(f"{_work(step, run)}/{name}", lambda: [content])
    return {name: list(checksums(content))}


def commit(url: str, step: int, run: str, settings: dict[str, Any], files: Sums) -> None:
    """Make a snapshot exist whose files are written. A whole one of this step stays. OSError."""
    store, work = open_store(url), _work(step, run)
    store.replace(f"{work}/{MANIFEST}", json.dumps({"settings": settings, "files": files}).encode())
    try:
        store.rename(work, _folder(step))
    except FileExistsError:
        if _is_whole(store, step):
            store.remove(work)
            return
        _discard(store, _folder(step))
        store.rename(work, _folder(step))


def expired(found: Iterable[tuple[int, bool]], keep: int) -> list[int]:
    """Of snapshots' steps, and whether each is whole: those older than the `keep` newest whole ones, at least the
    newest of which stays; oldest first. Pure."""
    whole = sorted((step for step, is_whole in found if is_whole), reverse=True)[: max(keep, 1)]
    return sorted(step for step, _ in found if whole and step < whole[-1])


def prune(url: str, keep: int, run: str) -> None:
    """Remove what has expired, and what dead runs left of snapshots up to the newest. OSError.

    A folder loses its name first, by a rename: what dies on the way leaves no half a snapshot under a whole one's
    name, and the next call removes the rest.
    """
    store = open_store(url)
    found = [(step, _is_whole(store, step)) for step in _steps(store)]
    for step in expired(found, keep):
        _discard(store, _folder(step))
    last = max((step for step, is_whole in found if is_whole), default=0)
    for name in store.list():
        work = _WORK.fullmatch(name)
        is_left = work and work[2] != run and int(work[1]) <= last
        if is_left or (name.startswith(TRASH) and name.endswith("/")):
            store.remove(name.removesuffix("/"))


def _discard(store: Store, folder: str) -> None:
    aside = f"{TRASH}{uuid.uuid4().hex}"
    store.rename(folder, aside)
    store.remove(aside)


def read_file(url: str, step: int, name: str) -> bytes:
    """A file of a snapshot. PartInvalid if it is not as it was written, OSError."""
    content = open_store(url).read(f"{_folder(step)}/{name}")
    if list(checksums(content)) != read_manifest(url, step)["files"].get(name):
        raise PartInvalid(f"{_folder(step)}/{name} is altered: remove the folder to use an older snapshot")
    return content


def load_share(url: str, step: int, spec: Spec, number: int, servers: int, rows: RowStore | None = None) -> Tables:
    """The tables of a server that is `number` of `servers`, however many wrote the snapshot, in `rows`. PartInvalid,
    OSError."""
    tables = Tables(spec, rows)
    for name in read_manifest(url, step)["files"]:
        if not name.endswith(".keys"):
            continue
        keys = np.frombuffer(read_file(url, step, name), dtype=np.uint64)
        content = np.frombuffer(read_file(url, step, name.removesuffix(".keys") + ".rows"), dtype=dtype_of(spec.dtype))
        mine = server_of(keys, servers) == number
        tables.set_rows(keys[mine], content.reshape(-1, spec.width)[mine])
    return tables


def _folder(step: int) -> str:
    return f"step-{step:08d}"


def _work(step: int, run: str) -> str:
    """Each run has its own: a server elsewhere may still be writing for one that died."""
    return f"work-{step:08d}-{run}"
