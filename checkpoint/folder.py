"""Names inside a store, and what they mean.

    step-00000020-t0003        a checkpoint after 20 steps, once it holds manifest.json
    step-00000020-t0003.tmp    the same while its parts are being written
    fence.json                 who may commit

The term in the name means that no checkpoint is ever written over another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.manifest import Manifest, decode
from holdfast.checkpoint.store import Store

MANIFEST = "manifest.json"
FENCE = "fence.json"
_NAME = re.compile(r"step-(\d{8,})-t(\d{4,})(\.tmp)?")


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One checkpoint's place in the store; newer ones compare greater."""

    step: int
    term: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:08d}-t{self.term:04d}"

    @property
    def attempt(self) -> str:
        return f"{self.folder}.tmp"


def part_name(rank: int) -> str:
    """File name of one rank's part."""
    return f"part-{rank:05d}.safetensors"


def slots(store: Store) -> Iterator[tuple[Slot, bool]]:
    """Every checkpoint folder in the store, newest first, with True where it is still an attempt."""
    found = [(Slot(int(m[1]), int(m[2])), m[3] is not None) for m in map(_NAME.fullmatch, store.list()) if m]
    yield from sorted(found, reverse=True)


def read_manifest(store: Store, slot: Slot) -> Manifest:
    """The manifest of a committed checkpoint. Raises ManifestInvalid also when there is none."""
    try:
        manifest = decode(store.read(f"{slot.folder}/{MANIFEST}"))
    except FileNotFoundError:
        raise ManifestInvalid("no manifest: never committed") from None
    except OSError as error:
        raise ManifestInvalid(f"unreadable: {error.strerror or error}") from None
    if (manifest.step, manifest.term) != (slot.step, slot.term):
        raise ManifestInvalid(f"speaks of step {manifest.step}, term {manifest.term}: a copy of another one")
    return manifest


def committed(store: Store) -> Iterator[tuple[Slot, Manifest]]:
    """Checkpoints that exist, newest first: those with a valid manifest."""
    for slot, is_attempt in slots(store):
        if is_attempt:
            continue
        try:
            yield slot, read_manifest(store, slot)
        except ManifestInvalid:
            continue
