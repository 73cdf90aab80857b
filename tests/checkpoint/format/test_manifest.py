"""The manifest: comes back as it was, and no altered byte goes unnoticed."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, Summed, checksums
from holdfast.checkpoint.format.manifest import Manifest, decode, encode
from holdfast.checkpoint.format.parts import Entry, Part
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.plan.tiles import TensorShard

W = GlobalTensor("w", (4, 2), "F32")
HALVES = (Entry("w", TensorShard((0, 0), (2, 2)), 64), Entry("w", TensorShard((2, 0), (2, 2)), 80))
SAMPLE = Manifest(
    step=20,
    term=3,
    attempt="a-0",
    generation=2,
    job="run-é",
    created=1.5e9,
    mesh={"pp": 2, "dp": 1, "tp": 1},
    tensors={"w": W},
    parts=(Part("part-00000.safetensors", 96, (17,), 0, HALVES), Part("part-00001.safetensors", 0, (), 1, ())),
    state={"model.layers": 4, "data.digest": 2**32 - 1},
    values={"applied": 20},
)


def changed(**fields: object) -> Manifest:
    return Manifest(**{name: getattr(SAMPLE, name) for name in SAMPLE.__dataclass_fields__} | fields)


@given(
    step=st.integers(0, 2**40),
    job=st.text(),
    created=st.floats(0, 2e11),
    sizes=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=4),
    state=st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans())),
)
def test_round_trip(step: int, job: str, created: float, sizes: list[int], state: dict[str, object]) -> None:
    parts = tuple(Part(f"p{i}", n, ((1 << 64) - 1 - i,) * -(-n // CHUNK_BYTES), i, ()) for i, n in enumerate(sizes))
    manifest = Manifest(step, 1, "a", 0, job, created, {"pp": 1}, {"w": W}, parts, state, {})
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
    with pytest.raises(ManifestInvalid, match="version 3, this build reads 2"):
        decode(encode(SAMPLE, version=3))


def test_part_names_stay_inside_their_folder() -> None:
    for name in ("../x", "a/b", ".hidden"):
        with pytest.raises(ManifestInvalid, match="is not a plain name"):
            decode(encode(changed(parts=(Part(name, 0, (), 0, ()),))))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (Entry("v", TensorShard((0,), (1,)), 64), "v at .*no such tensor"),
        (Entry("w", TensorShard((3, 0), (2, 2)), 64), "no such tensor"),
        (Entry("w", TensorShard((0,), (2,)), 64), "no such tensor"),
        (Entry("w", TensorShard((0, 0), (4, 2)), 72), "w at byte 72, which cannot be"),
        (Entry("w", TensorShard((0, 0), (2, 2)), 66), "w at byte 66, which cannot be"),
        (Entry("w", TensorShard((0, 0), (2, 2)), -4), "w at byte -4, which cannot be"),
    ],
)
def test_entries_lie_in_their_file_and_tensor(entry: Entry, says: str) -> None:
    with pytest.raises(ManifestInvalid, match=says):
        decode(encode(changed(parts=(Part("p", 96, (1,), 0, (entry,)),))))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ManifestInvalid, match="w is of type 'F128'"):
        decode(encode(changed(tensors={"w": GlobalTensor("w", (4, 2), "F128")})))


@given(st.lists(st.integers(0, CHUNK_BYTES), max_size=6))
def test_a_stream_has_the_sums_of_its_whole(sizes: list[int]) -> None:
    content = bytes(range(251)) * (sum(sizes) // 251 + 1)
    content = content[: sum(sizes)]
    pieces, at = [], 0
    for size in sizes:
        pieces.append(content[at : at + size])
        at += size
    summed = Summed(pieces)
    assert b"".join(summed) == content
    assert (summed.num_bytes, summed.sums()) == (len(content), checksums(content))


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1, 7 * CHUNK_BYTES])
@pytest.mark.parametrize("threads", [2, 4, 16])
def test_threads_find_the_same_sums_in_the_same_order(length: int, threads: int) -> None:
    content = random.Random(length).randbytes(length)
    sums = checksums(content, threads)
    assert sums == checksums(content)
    assert len(sums) == len(set(sums)) == -(-length // CHUNK_BYTES)


def test_it_is_json() -> None:
    assert json.loads(encode(SAMPLE))["manifest"]["step"] == 20
