"""Snapshots of a run in a store: a folder for each, which gets its name when all of it is there.

    step-00000100/server-0-of-2.keys .rows     a server's share
    step-00000100/model.pt                     the parameters that are no tables
    step-00000100/run.json                     what they are, and a checksum of each file
    work-00000100/                             one that is being written

The first stage copies in memory, between two iterations; the second one writes while training goes on.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from holdfast.base.errors import UsageError
from holdfast.checkpoint.errors import PartInvalid
from holdfast.checkpoint.format.arrays import to_bytes
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.stores.opening import open_store
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of, server_of
from holdfast.trainer.embeddings.servers.tables import Spec, Tables

MANIFEST = "run.json"
MODEL = "model.pt"
_NAME = re.compile(r"step-([0-9]{8,18})/")

Sums = dict[str, list[int]]
"""By name of a file, its checksums (`holdfast.checkpoint.format.checksum`)."""


def newest(url: str) -> int:
    """Steps done in the newest snapshot of a store; 0 without any. OSError."""
    return max((int(found[1]) for found in map(_NAME.fullmatch, open_store(url).list()) if found), default=0)


def read_manifest(url: str, step: int) -> dict[str, Any]:
    """The manifest of a snapshot. PartInvalid, OSError."""
    try:
        found = json.loads(open_store(url).read(f"{_folder(step)}/{MANIFEST}"))
        if not isinstance(found["files"], dict) or not isinstance(found["settings"], dict):
            raise ValueError("no files or no settings in it")
    except (ValueError, KeyError, TypeError) as error:
        raise PartInvalid(f"{_folder(step)}/{MANIFEST}: {error}") from None
    return dict(found)


def check_settings(url: str, step: int, settings: dict[str, Any]) -> None:
    """UsageError if a snapshot is of a run that differs in what must stay."""
    theirs = read_manifest(url, step)["settings"]
    for name, value in settings.items():
        if theirs.get(name) != value:
            raise UsageError(
                f"the snapshot of step {step} was trained with --{name} {theirs.get(name)}, not {value}: give"
                f" --{name} {theirs.get(name)}, or another --store"
            )


def prepare(url: str, step: int) -> None:
    """Make the folder of a snapshot that is to be written; fine when it exists. OSError."""
    open_store(url).make_folder(_work(step))


def write_share(url: str, step: int, number: int, servers: int, keys: Keys, rows: Rows) -> Sums:
    """Write a server's share; the checksums. OSError."""
    name = f"server-{number}-of-{servers}"
    return {
        **write_file(url, step, f"{name}.keys", to_bytes(keys)),
        **write_file(url, step, f"{name}.rows", to_bytes(rows)),
    }


def write_file(url: str, step: int, name: str, content: bytes | memoryview) -> Sums:
    prepare(url, step)
    open_store(url).create(f"{_work(step)}/{name}", lambda: [content])
    return {name: list(checksums(content))}


def commit(url: str, step: int, settings: dict[str, Any], files: Sums) -> None:
    """Make a snapshot exist whose files are written. One that exists already stays. OSError."""
    store = open_store(url)
    store.replace(f"{_work(step)}/{MANIFEST}", json.dumps({"settings": settings, "files": files}).encode())
    try:
        store.rename(_work(step), _folder(step))
    except FileExistsError:
        store.remove(_work(step))


def read_file(url: str, step: int, name: str) -> bytes:
    """A file of a snapshot. PartInvalid if it is not as it was written, OSError."""
    content = open_store(url).read(f"{_folder(step)}/{name}")
    if list(checksums(content)) != read_manifest(url, step)["files"].get(name):
        raise PartInvalid(f"{_folder(step)}/{name} is altered: remove the folder to use an older snapshot")
    return content


def load_share(url: str, step: int, spec: Spec, number: int, servers: int) -> Tables:
    """The tables of a server that is `number` of `servers`, however many wrote the snapshot. PartInvalid, OSError."""
    tables = Tables(spec)
    for name in read_manifest(url, step)["files"]:
        if not name.endswith(".keys"):
            continue
        keys = np.frombuffer(read_file(url, step, name), dtype=np.uint64)
        rows = np.frombuffer(read_file(url, step, name.removesuffix(".keys") + ".rows"), dtype=dtype_of(spec.dtype))
        mine = server_of(keys, servers) == number
        tables.set_rows(keys[mine], rows.reshape(-1, spec.dim)[mine])
    return tables


def _folder(step: int) -> str:
    return f"step-{step:08d}"


def _work(step: int) -> str:
    return f"work-{step:08d}"
