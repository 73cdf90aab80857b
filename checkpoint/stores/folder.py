"""Names inside a store, and what they mean.

    step-00000020-t0003/        a checkpoint after 20 steps, written in term 3; holds parts and manifest.json
    work-t0003/                 attempts of term 3 while they are being written; a file once the term is over
    claims/t0003.json           the run that took the store over as term 3
    trash-...                   on its way out, or a small file on its way in (HDFS)

A checkpoint gets its name by one atomic rename, when all of it is there. The term in the name means that none is ever
written over another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.format.manifest import Manifest, decode
from holdfast.checkpoint.stores.store import Store

MANIFEST = "manifest.json"
PROTECTED = "protected"
"""A file of this name in a checkpoint's folder keeps it for good."""
TRASH = "trash-"
_NAME = re.compile(r"step-([0-9]{8,18})-t([0-9]{4,18})/")


@dataclass(frozen=True, slots=True)
class Slot:
    """One checkpoint's place in the store."""

    step: int
    term: int

    @property
    def newness(self) -> tuple[int, int]:
        """Newer ones have more. A later term knew what there was, and may have gone back to an earlier step."""
        return self.term, self.step

    @property
    def folder(self) -> str:
        return f"step-{self.step:08d}-t{self.term:04d}"


def slots(store: Store) -> list[Slot]:
    """Every checkpoint folder in the store, newest first."""
    found = [Slot(int(m[1]), int(m[2])) for m in map(_NAME.fullmatch, store.list()) if m]
    found = list(dict.fromkeys(found))  # more zeros than we write make another name of the same
    return sorted(found, key=lambda slot: slot.newness, reverse=True)


def read_manifest(store: Store, slot: Slot) -> Manifest:
    """The manifest of a committed checkpoint. Raises ManifestInvalid also when there is none."""
    try:
        content = store.read(f"{slot.folder}/{MANIFEST}")
    except FileNotFoundError:
        raise ManifestInvalid("no manifest: never committed") from None
    except OSError as error:
        raise ManifestInvalid(f"unreadable: {error.strerror or error}") from None
    return parse_manifest(content, slot)


def parse_manifest(content: bytes, slot: Slot) -> Manifest:
    """The manifest in `content`, if it is that of `slot`. Raises ManifestInvalid."""
    manifest = decode(content)
    if (manifest.step, manifest.term) != (slot.step, slot.term):
        raise ManifestInvalid(f"speaks of step {manifest.step}, term {manifest.term}: a copy of another one")
    return manifest


def committed(store: Store, pass_over: Callable[[str], None] = lambda line: None) -> Iterator[tuple[Slot, Manifest]]:
    """Checkpoints that exist, newest first: those with a valid manifest. `pass_over` gets a line for each other."""
    for slot in slots(store):
        try:
            yield slot, read_manifest(store, slot)
        except ManifestInvalid as error:
            pass_over(f"{slot.folder}: manifest: {error}")
