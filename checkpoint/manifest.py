"""The manifest: the file whose presence makes a checkpoint exist.

Pure: bytes to values and back. A manifest is accepted only when its bytes are exactly the canonical form
of what they say and the digest inside agrees, so that no altered byte goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint.errors import ManifestInvalid, PartInvalid

VERSION = 1
CHUNK_BYTES = 1 << 20
_FORMAT = "holdfast-checkpoint"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a checkpoint, written by one rank."""

    file: str
    """Name inside the checkpoint's folder."""
    bytes: int
    crc32: tuple[int, ...]
    """One checksum for each MiB of the file, the last one for what is left."""
    rank: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a restore must know before it opens a part."""

    step: int
    """Steps completed: training goes on with the step of this number, counted from 0."""
    term: int
    """The store's own count of takeovers: newer terms fence out older ones."""
    generation: int
    job: str
    created: float
    """Seconds since the epoch, by the clock of rank 0. For people only."""
    mesh: Mapping[str, int]
    """Mesh dimensions by name, outermost first."""
    parts: tuple[Part, ...]
    """One for each rank, in rank order."""
    state: Mapping[str, Any]
    """The trainer's own: what must be equal for these parts to fit."""
    version: int = VERSION

    @property
    def num_bytes(self) -> int:
        """Bytes in all parts together."""
        return sum(part.bytes for part in self.parts)


def encode(manifest: Manifest) -> bytes:
    """The manifest as canonical JSON with its own digest."""
    body = asdict(manifest)
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
        parts = tuple(_part(entry) for entry in body["parts"])
        manifest = Manifest(**{**body, "parts": parts})
    except (KeyError, TypeError) as error:
        raise ManifestInvalid(f"fields are missing or unknown: {error}") from None
    if [part.rank for part in parts] != list(range(len(parts))):
        raise ManifestInvalid("parts are not one for each rank in order")
    return manifest


def part_from_json(entry: Mapping[str, Any]) -> Part:
    """A part as `dataclasses.asdict` wrote it, back. Raises ManifestInvalid."""
    try:
        return _part(entry)
    except (KeyError, TypeError) as error:
        raise ManifestInvalid(f"a part lacks fields: {error}") from None


def chunks(content: bytes | memoryview) -> Iterator[memoryview]:
    """`content` in pieces of one MiB, the unit of checksums."""
    view = memoryview(content)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def checksums(content: bytes | memoryview) -> tuple[int, ...]:
    """CRC-32 of each MiB of `content`."""
    return tuple(zlib.crc32(piece) for piece in chunks(content))


def check_part(part: Part, content: bytes) -> None:
    """Raise PartInvalid, saying where, unless `content` is what was written."""
    if len(content) != part.bytes:
        raise PartInvalid(f"{part.file} has {len(content)} bytes, written were {part.bytes}")
    for index, (got, want) in enumerate(zip(checksums(content), part.crc32, strict=True)):
        if got != want:
            raise PartInvalid(f"{part.file} is corrupt within MiB {index} (crc {got:08x}, written {want:08x})")


def _part(entry: Mapping[str, Any]) -> Part:
    part = Part(entry["file"], entry["bytes"], tuple(entry["crc32"]), entry["rank"])
    if not isinstance(part.file, str) or "/" in part.file or part.file.startswith("."):
        raise ManifestInvalid(f"part file {part.file!r} is not a plain name")
    if len(part.crc32) != -(-part.bytes // CHUNK_BYTES):
        raise ManifestInvalid(f"part {part.file} has {len(part.crc32)} checksums for {part.bytes} bytes")
    return part


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
