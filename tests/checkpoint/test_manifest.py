"""The manifest: comes back as it was, and no altered byte goes unnoticed."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import ManifestInvalid, PartInvalid
from holdfast.checkpoint.manifest import (
    CHUNK_BYTES,
    Manifest,
    Part,
    check_part,
    checksums,
    decode,
    encode,
)

SAMPLE = Manifest(
    step=20,
    term=3,
    generation=2,
    job="run-é",
    created=1.5e9,
    mesh={"pp": 2, "dp": 1, "tp": 1},
    parts=(Part("part-00000.safetensors", 3, (17,), 0), Part("part-00001.safetensors", 0, (), 1)),
    state={"model.layers": 4, "data.digest": 2**32 - 1},
)


@given(
    step=st.integers(0, 2**40),
    job=st.text(),
    created=st.floats(allow_nan=False, allow_infinity=False),
    sizes=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=4),
    state=st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans())),
)
def test_round_trip(step: int, job: str, created: float, sizes: list[int], state: dict[str, object]) -> None:
    parts = tuple(Part(f"p{i}", n, (i,) * -(-n // CHUNK_BYTES), i) for i, n in enumerate(sizes))
    manifest = Manifest(step, 1, 0, job, created, {"pp": 1}, parts, state)
    assert decode(encode(manifest)) == manifest


def test_every_changed_byte_is_noticed() -> None:
    good = encode(SAMPLE)
    for position in range(len(good)):
        for flip in (0x01, 0x20, 0x80):
            bad = bytearray(good)
            bad[position] ^= flip
            with pytest.raises(ManifestInvalid):
                decode(bytes(bad))


def test_every_truncation_is_noticed() -> None:
    good = encode(SAMPLE)
    for length in range(len(good)):
        with pytest.raises(ManifestInvalid):
            decode(good[:length])


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "not JSON"), (b"[]", "not a Holdfast"), (b'{"format":"holdfast-checkpoint"}', "no body")],
)
def test_other_files_are_refused(content: bytes, says: str) -> None:
    with pytest.raises(ManifestInvalid, match=says):
        decode(content)


def test_a_newer_version_is_named() -> None:
    newer = Manifest(**{f: getattr(SAMPLE, f) for f in SAMPLE.__dataclass_fields__} | {"version": 2})
    with pytest.raises(ManifestInvalid, match="version 2, this build reads 1"):
        decode(encode(newer))


def test_part_names_stay_inside_their_folder() -> None:
    for name in ("../x", "a/b", ".hidden"):
        bad = Manifest(1, 1, 0, "", 0.0, {}, (Part(name, 0, (), 0),), {})
        with pytest.raises(ManifestInvalid):
            decode(encode(bad))


def test_bad_parts_say_where() -> None:
    content = bytes(range(256)) * 8192  # two MiB
    part = Part("p", len(content), checksums(content), 0)
    assert part.crc32[0] == zlib.crc32(content[:CHUNK_BYTES])
    check_part(part, content)
    with pytest.raises(PartInvalid, match="p has 5 bytes, written were 2097152"):
        check_part(part, content[:5])
    changed = bytearray(content)
    changed[CHUNK_BYTES + 7] ^= 1
    with pytest.raises(PartInvalid, match="p is corrupt within MiB 1"):
        check_part(part, bytes(changed))


def test_it_is_json() -> None:
    assert json.loads(encode(SAMPLE))["manifest"]["step"] == 20
