"""Sealed blocks, and what the light modules may load."""

import itertools
import mmap
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.probe_file import layout
from holdfast.base import bounds
from tests.agent.support.processes import ROOT


@given(old=st.binary(min_size=64, max_size=64), new=st.binary(min_size=64, max_size=64), cut=st.integers(0, 72))
def test_a_half_written_block_is_never_taken_for_a_value(old: bytes, new: bytes, cut: int) -> None:
    buffer = mmap.mmap(-1, mmap.PAGESIZE)
    written, coming = layout.seal(old), layout.seal(new)
    buffer[:72] = coming[:cut] + written[cut:]
    assert layout.open_sealed(buffer, 0, 64) in (old, new, None)
    buffer[:72] = written[:cut] + coming[cut:]  # a copy may run in either direction
    assert layout.open_sealed(buffer, 0, 64) in (old, new, None)
    buffer.close()


def test_an_empty_block_is_no_value() -> None:
    buffer = mmap.mmap(-1, mmap.PAGESIZE)
    for size in (0, 8, 64):
        assert layout.open_sealed(buffer, 0, size) is None
    buffer.close()


@given(
    written=st.integers(1, 20),
    first=st.integers(0, 20),
    end=st.integers(0, 21),
    torn=st.none() | st.tuples(st.integers(0, 7), st.integers(0, layout.RECORD - 1)),
)
def test_records_are_reported_all_or_not_at_all(
    written: int, first: int, end: int, torn: tuple[int, int] | None
) -> None:
    slots, ring = 8, 256
    buffer = mmap.mmap(-1, mmap.PAGESIZE)
    payloads = [index.to_bytes(8, "little") + bytes([index]) * 48 for index in range(written)]
    for index, payload in enumerate(payloads):
        at = ring + index % slots * layout.RECORD
        buffer[at : at + layout.RECORD] = layout.seal(payload)
    held = set(range(max(0, written - slots), written))
    if torn is not None:
        slot, at = torn
        buffer[ring + slot * layout.RECORD + at] ^= 1
        held -= {index for index in held if index % slots == slot}
    whole = first < end and set(range(first, end)) <= held
    assert layout.records(buffer, ring, slots, first, end) == (payloads[first:end] if whole else None)
    buffer.close()


def test_areas_do_not_overlap() -> None:
    areas = [
        (0, layout.HEADER.size),
        (8 * layout.WORD_PID, 8 * (layout.WORD_EVENTS_DONE + 1 - layout.WORD_PID)),
        (layout.AT_STATE, 8 + layout.STATE.size),
        (layout.AT_OPERATION, 8 + layout.OPERATION.size),
        (layout.AT_MESH, 8 + layout.MESH.size),
        (layout.AT_METERS, 8 + layout.METERS.size),
        (layout.AT_NAMES, layout.NAMES * layout.NAME),
        (layout.AT_STEPS, layout.STEPS * layout.RECORD),
        (layout.AT_SPANS, layout.SPANS * layout.RECORD),
        (layout.AT_GROUPS, layout.GROUPS * layout.GROUP_STRIDE),
        (layout.AT_COUNTED, layout.GROUPS),
        (layout.AT_OPEN, layout.OPEN_ROWS * layout.OPEN_STRIDE),
        (layout.AT_RECORD, 8 + layout.RECORD_BYTES),
        (layout.AT_PAST, layout.PAST_ROWS * layout.PAST_STRIDE),
        (layout.SIZE, 0),
    ]
    for (start, length), (following, _) in itertools.pairwise(areas):
        assert start + length <= following
    assert 8 + layout.STEP.size == layout.RECORD
    assert 8 + layout.SPAN.size == layout.RECORD
    assert 8 + 8 + layout.GROUP.size <= layout.GROUP_STRIDE
    assert 8 + layout.OPEN.size <= layout.OPEN_STRIDE
    assert 8 + layout.PAST.size <= layout.PAST_STRIDE
    assert layout.PAST_ROWS + layout.RECORD_OVER <= bounds.MAX_PAST
    assert layout.AT_OPEN % 8 == 0  # a row's seal is one word
    assert len(layout.INJECTIONS) < 256


def test_the_light_modules_load_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from holdfast.agent import probe\n"
        "from holdfast.agent.probe_file import reader\n"
        "from holdfast.agent.forkserver import client, fork_server\n"
        "print([m for m in ('torch', 'numpy', 'grpc', 'google.protobuf', 'psutil', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
