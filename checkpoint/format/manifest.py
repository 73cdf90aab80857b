"""The manifest: the file whose presence makes a checkpoint exist.

Pure: bytes to values and back. A manifest is accepted only when its bytes are exactly the canonical form
of what they say and the digest inside agrees, so that no altered byte goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.format.checksum import CHUNK_BYTES
from holdfast.checkpoint.format.parts import Entry, Part
from holdfast.checkpoint.format.tiles import ITEM_BYTES, GlobalTensor
from holdfast.plan.tiles import TensorShard

VERSION = 2
DEPTH = 400
"""Levels of objects and lists that a manifest may have."""
_FORMAT = "holdfast-checkpoint"
_KINDS: dict[str, type | tuple[type, ...]] = {
    "step": int, "term": int, "attempt": str, "generation": int, "job": str, "created": (int, float), "mesh": dict,
    "tensors": dict, "parts": list, "state": dict, "values": dict,
}  # fmt: skip
_PART_FIELDS = frozenset(["file", "bytes", "sums", "writer", "entries"])
_SUMS = re.compile("(?:[0-9a-f]{16})*")
_MOST = 1 << 63
_END = 253402214400.0
"""The last day of the year 9999, in seconds since the epoch: what calendars can show."""


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
    """Parse and check a manifest. Raises ManifestInvalid with the reason, whatever the bytes are."""
    try:
        outer = json.loads(content)
        if not isinstance(outer, dict) or outer.get("format") != _FORMAT:
            raise ManifestInvalid("not a Holdfast manifest")
        body = outer.get("manifest")
        if not isinstance(body, dict):
            raise ManifestInvalid("no body")
        is_ours = outer.get("sha256") == _digest(body) and _canonical(outer) == content
    except RecursionError:
        raise ManifestInvalid(f"more than {DEPTH} levels deep") from None
    except (ValueError, MemoryError) as error:
        raise ManifestInvalid(f"not JSON: {error or 'too much of it'}") from None
    if not is_ours:
        raise ManifestInvalid("its digest does not match its text")
    if body.get("version") != VERSION:
        raise ManifestInvalid(f"version {_short(body.get('version'))}, this build reads {VERSION}")
    return _manifest({key: value for key, value in body.items() if key != "version"})


def _manifest(body: Mapping[str, Any]) -> Manifest:
    if odd := sorted(body.keys() ^ _KINDS.keys()):
        raise ManifestInvalid(f"fields are missing or unknown: {_short(odd)}")
    for name, kind in _KINDS.items():
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise ManifestInvalid(f"{name} is {_short(body[name])}")
    for name in ("step", "term", "generation"):
        _require(_is_count(body[name]), f"{name} is {_short(body[name])}")
    for name in ("mesh", "state", "values"):
        # The same bound wherever it is read, however deep the reader itself is.
        _require(not is_deeper(body[name], DEPTH), f"{name} is more than {DEPTH} levels deep")
    created, mesh = body["created"], body["mesh"]
    created = min(max(created, 0.0), _END)  # a clock may have been wrong: the state is none the worse for it
    _require(all(_is_count(n) and n for n in mesh.values()), f"mesh is {_short(mesh)}")
    _require(math.prod(mesh.values()) < _MOST, f"mesh is {_short(mesh)}")
    tensors = {name: _tensor(name, entry) for name, entry in body["tensors"].items()}
    parts = tuple(part_from_json(entry) for entry in body["parts"])
    for part in parts:
        _check_entries(part, tensors)
    _require(sum(part.bytes for part in parts) < _MOST, "its parts are too large")
    return Manifest(**{**body, "created": created, "tensors": tensors, "parts": parts})


def part_to_json(part: Part) -> dict[str, Any]:
    """A part as plain data: checksums as one string of 16 hexadecimal digits for each MiB."""
    return {
        "file": part.file,
        "bytes": part.bytes,
        "sums": "".join(f"{one:016x}" for one in part.sums),
        "writer": part.writer,
        "entries": [[e.tensor, list(e.shard.offset), list(e.shard.size), e.start] for e in part.entries],
    }


def part_from_json(entry: Any) -> Part:
    """Undo `part_to_json`. Raises ManifestInvalid, whatever it is."""
    if not isinstance(entry, dict) or entry.keys() != _PART_FIELDS:
        raise ManifestInvalid(f"a part lacks fields: {_short(entry)}")
    file, num_bytes, sums, writer, entries = (entry[key] for key in ("file", "bytes", "sums", "writer", "entries"))
    if not isinstance(file, str) or not file or "/" in file or "\0" in file or file.startswith("."):
        raise ManifestInvalid(f"part file {_short(file)} is not a plain name")
    _require(_is_count(num_bytes) and _is_count(writer), f"part {_bare(file)} is no part: {_short(num_bytes)} bytes")
    _require(isinstance(sums, str) and _SUMS.fullmatch(sums) is not None, f"part {_bare(file)} has no checksums")
    count = len(sums) // 16
    if count != -(-num_bytes // CHUNK_BYTES):
        raise ManifestInvalid(f"part {_bare(file)} has {count} checksums for {num_bytes} bytes")
    _require(isinstance(entries, list), f"part {_bare(file)} has no entries")
    values = tuple(int(sums[at : at + 16], 16) for at in range(0, len(sums), 16))
    return Part(file, num_bytes, values, writer, tuple(_entry(file, one) for one in entries))


def _entry(file: str, entry: Any) -> Entry:
    if isinstance(entry, list) and len(entry) == 4:
        name, low, size, start = entry
        if isinstance(name, str) and _are_counts(low) and _are_counts(size) and type(start) is int:
            return Entry(name, TensorShard(tuple(low), tuple(size)), start)
    raise ManifestInvalid(f"part {_bare(file)} has an entry that is none: {_short(entry)}")


def _tensor(name: str, entry: Any) -> GlobalTensor:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ManifestInvalid(f"{_bare(name)} is {_short(entry)}")
    dtype, shape = entry
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ManifestInvalid(f"{_bare(name)} is of type {_short(dtype)}, this build knows {', '.join(ITEM_BYTES)}")
    # The bound is that of what a process can address; a dimension of 0 makes none of the others harmless.
    if not _are_counts(shape) or math.prod(n or 1 for n in shape) >= _MOST // 8:
        raise ManifestInvalid(f"{_bare(name)} is of shape {_short(shape)}")
    return GlobalTensor(name, tuple(shape), dtype)


def _check_entries(part: Part, tensors: Mapping[str, GlobalTensor]) -> None:
    for entry in part.entries:
        tensor, dims = tensors.get(entry.tensor), (len(entry.shard.offset), len(entry.shard.size))
        if tensor is None or dims != (len(tensor.shape),) * 2 or not tensor.shard.holds(entry.shard):
            raise ManifestInvalid(
                f"part {_bare(part.file)} has {_bare(entry.tensor)} at {_short(list(entry.shard.offset))}, "
                "which is no such tensor"
            )
        stop = entry.start + entry.shard.count * tensor.item_bytes
        if entry.start < 0 or stop > part.bytes or entry.start % tensor.item_bytes:
            raise ManifestInvalid(
                f"part {_bare(part.file)} has {_bare(entry.tensor)} at byte {_short(entry.start)}, which cannot be"
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _are_counts(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return not value or ({*map(type, value)} == {int} and min(value) >= 0 and max(value) < _MOST)


def _require(ok: bool, reason: str) -> None:
    if not ok:
        raise ManifestInvalid(reason)


def _short(value: Any) -> str:
    """Whatever was written there, as a part of one line."""
    if type(value) is int and abs(value) >= 10**30:
        return "a huge number"
    if isinstance(value, dict | list) and len(value) > 8:
        return f"{len(value)} things"
    text = repr(value) if isinstance(value, str) and value.isprintable() else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bare(name: str) -> str:
    """A name, as a part of one line."""
    return name if name.isprintable() and len(name) <= 80 else _short(name)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether JSON has more levels of objects and lists than that."""
    level = [value]
    for _ in range(levels + 1):
        level = [one for one in level if isinstance(one, dict | list) and one]
        if not level:
            return False
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return True


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
