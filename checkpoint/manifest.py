"""The manifest: the file whose presence makes a checkpoint exist.

Pure: bytes to values and back. A manifest is accepted only when its bytes are exactly the canonical form
of what they say and the digest inside agrees, so that no altered byte goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.checksum import CHUNK_BYTES
from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.parts import Entry, Part
from holdfast.checkpoint.tiles import ITEM_BYTES, Box, GlobalTensor

VERSION = 2
_FORMAT = "holdfast-checkpoint"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a restore must know before it opens a part."""

    step: int
    """Steps completed: training goes on with the step of this number, counted from 0."""
    term: int
    """The store's own count of takeovers: newer terms fence out older ones."""
    attempt: str
    """Names the one attempt whose parts these are; it stands in every part too."""
    generation: int
    job: str
    created: float
    """Seconds since the epoch, by the clock of rank 0. For people only."""
    mesh: Mapping[str, int]
    """Mesh dimensions by name, outermost first, of the job that wrote it. Another one can read it."""
    tensors: Mapping[str, GlobalTensor]
    parts: tuple[Part, ...]
    state: Mapping[str, Any]
    """Settings that must be equal in a run that goes on from here."""
    values: Mapping[str, Any]
    """State that is no tensor, the same for all workers."""

    @property
    def num_bytes(self) -> int:
        """Bytes in all parts together."""
        return sum(part.bytes for part in self.parts)


def encode(manifest: Manifest, version: int = VERSION) -> bytes:
    """The manifest as canonical JSON with its own digest."""
    body = {
        "version": version,
        "step": manifest.step,
        "term": manifest.term,
        "attempt": manifest.attempt,
        "generation": manifest.generation,
        "job": manifest.job,
        "created": manifest.created,
        "mesh": dict(manifest.mesh),
        "tensors": {name: [t.dtype, list(t.shape)] for name, t in manifest.tensors.items()},
        "parts": [part_to_json(part) for part in manifest.parts],
        "state": dict(manifest.state),
        "values": dict(manifest.values),
    }
    return _canonical({"format": _FORMAT, "sha256": _digest(body), "manifest": body})


def decode(content: bytes) -> Manifest:
    """Parse and check a manifest. Raises ManifestInvalid with the reason."""
    try:
        outer = json.loads(content)
    except ValueError as error:
        raise ManifestInvalid(f"not JSON: {error}") from None
    if not isinstance(outer, dict) or outer.get("format") != _FORMAT:
        raise ManifestInvalid("not a Holdfast manifest")
    body = outer.get("manifest")
    if not isinstance(body, dict):
        raise ManifestInvalid("no body")
    if outer.get("sha256") != _digest(body) or _canonical(outer) != content:
        raise ManifestInvalid("its digest does not match its text")
    if body.get("version") != VERSION:
        raise ManifestInvalid(f"version {body.get('version')}, this build reads {VERSION}")
    try:
        tensors = {name: _tensor(name, *entry) for name, entry in body["tensors"].items()}
        parts = tuple(part_from_json(entry) for entry in body["parts"])
        rest = {key: value for key, value in body.items() if key != "version"}
        manifest = Manifest(**{**rest, "tensors": tensors, "parts": parts})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestInvalid(f"fields are missing or unknown: {error}") from None
    for part in parts:
        _check_entries(part, tensors)
    return manifest


def part_to_json(part: Part) -> dict[str, Any]:
    """A part as plain data: checksums as one string of 16 hexadecimal digits for each MiB."""
    return {
        "file": part.file,
        "bytes": part.bytes,
        "sums": "".join(f"{one:016x}" for one in part.sums),
        "writer": part.writer,
        "entries": [[e.tensor, list(e.box.offset), list(e.box.size), e.start] for e in part.entries],
    }


def part_from_json(entry: Mapping[str, Any]) -> Part:
    """Undo `part_to_json`. Raises ManifestInvalid."""
    try:
        text = entry["sums"]
        sums = tuple(int(text[at : at + 16], 16) for at in range(0, len(text), 16))
        entries = tuple(Entry(name, Box(tuple(low), tuple(size)), at) for name, low, size, at in entry["entries"])
        part = Part(entry["file"], entry["bytes"], sums, entry["writer"], entries)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestInvalid(f"a part lacks fields: {error}") from None
    if not isinstance(part.file, str) or "/" in part.file or part.file.startswith("."):
        raise ManifestInvalid(f"part file {part.file!r} is not a plain name")
    if len(part.sums) != -(-part.bytes // CHUNK_BYTES):
        raise ManifestInvalid(f"part {part.file} has {len(part.sums)} checksums for {part.bytes} bytes")
    return part


def _tensor(name: str, dtype: str, shape: list[int]) -> GlobalTensor:
    if dtype not in ITEM_BYTES:
        raise ManifestInvalid(f"{name} is of type {dtype!r}, this build knows {', '.join(ITEM_BYTES)}")
    return GlobalTensor(name, tuple(shape), dtype)


def _check_entries(part: Part, tensors: Mapping[str, GlobalTensor]) -> None:
    for entry in part.entries:
        tensor = tensors.get(entry.tensor)
        if tensor is None or len(entry.box.size) != len(tensor.shape) or not tensor.box.holds(entry.box):
            raise ManifestInvalid(f"part {part.file} has {entry.tensor} at {entry.box.offset}, which is no such tensor")
        stop = entry.start + entry.box.count * tensor.item_bytes
        if entry.start < 0 or stop > part.bytes or entry.start % tensor.item_bytes:
            raise ManifestInvalid(f"part {part.file} has {entry.tensor} at byte {entry.start}, which cannot be")


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
