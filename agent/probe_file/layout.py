"""The bytes of a probe file, shared by the worker that writes them and the agent that reads them.

A file holds a header that never changes, single words, a few blocks, and two rings. Words are aligned 8-byte
integers, so one store is one value. Blocks and ring records are *sealed*: a checksum of the payload in front of it,
and both go out in one memory copy. That has the effect of a seqlock (a reader that meets a half-written block sees
a wrong checksum and reads again) with two gains that matter here: two threads of the worker cannot leave a block
half of one and half of the other, because the copy happens under the GIL; and no memory barrier is needed, which
Python does not offer, so it also holds on processors that reorder stores.

All integers are little-endian; times are CLOCK_MONOTONIC nanoseconds (comparable between processes of one host)
unless the name says `wall`.
"""

import mmap
import os
import signal
import struct
from typing import Protocol
from zlib import crc32

from holdfast.base.bounds import MAX_GENERATION, MAX_RANKS
from holdfast.base.errors import ProtocolError, Unavailable
from holdfast.wire import span_rows
from holdfast.wire.types import STEP_PARTS

ENV_PATH = "HOLDFAST_PROBE"
ENV_GENERATION = "HOLDFAST_GENERATION"

PLAN_SUFFIX = ".plan"
RESTORED_SUFFIX = ".restored"
"""A job's rank 0 leaves its plan beside its probe, under the probe's name and this; and where its state came from."""
IMPORTS_SUFFIX = ".imports"
"""And how long its imports took, up to its first step."""
SAVED_SUFFIX = ".saved"
"""Where a worker whose program says nothing leaves what the hooks saw it save: JSON with count, path and number."""
STACKS_SUFFIX = ".stacks"
"""Where a worker writes its stacks to when it is asked for them (WORD_STACKS), or sent STACKS_SIGNAL."""
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7  # one that neither glibc nor the schedulers of jobs use

MAGIC = b"HFPROBE9"
HEADER = struct.Struct("<8sIIIIiiq")
"""magic, file size, step records, span records, names; rank, generation, created_ns."""

# Words: index into the file seen as 8-byte integers.
WORD_PID = 8
WORD_TICK = 9
WORD_INJECT = 10
WORD_STEPS = 11  # step records ever written; a hint for a writer that takes over, readers go by the records
WORD_SPANS = 12
WORD_NAMES = 13
WORD_REQUEST = 14  # a checkpoint is requested now
WORD_COUNTED = 24  # 1: the steps are counted by a hook, and the program numbers none
WORD_BEGUN = 15  # the operation that the main thread began last in its place, as `begun_word`; 0: none
WORD_EVENTS = 25  # events that timers recorded in a GPU's streams
WORD_EVENTS_DONE = 26  # those of them that the GPU has passed
WORD_TICK_THREAD = 16  # the kernel's id of the liveness thread, which is not the worker's own doing
WORD_MOVED = 17  # when any thread last began an operation, began to wait for one, or ended that wait
WORD_UNSEEN = 18  # threads that wait for an operation and found no row for it
WORD_HANDLERS = 20  # signals for which the script has a handler, a bit each from SIGHUP (1) on
WORD_STACKS = 21  # 1: the stacks of all threads are asked for
WORD_NO_SLOT = 19  # 1: a group did not fit into the table, and what is done in it is not seen

STATE = struct.Struct("<qqqdqq")
"""step, phase index, progress_ns, loss, tokens so far, attached_ns."""
OPERATION_NAME = 56
OPERATION = struct.Struct(f"<qqq{OPERATION_NAME}s")
"""Of the main thread: since_ns (0: none), changed_ns, number of the record; name."""
OPERATION_KINDS: tuple[str, ...] = (
    "", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "recv", "reduce", "reduce_scatter",
    "scatter", "send", "new_group", "monitored_barrier",
)  # fmt: skip
"""What processes do together, by number: append only."""
GROUP_LABEL = 28
GROUP_MEMBERS = 140
GROUP = struct.Struct(f"<I{GROUP_LABEL}s{GROUP_MEMBERS}s")
"""id, label, members as `rank_sets.compact` writes them (empty: too many to name)."""
MESH = struct.Struct("<6i")
"""coordinate pp, dp, tp; sizes pp, dp, tp (all 0: unknown)."""
METERS = struct.Struct(f"<qdd{len(STEP_PARTS)}dqd")
"""step; MFU, tokens a second, seconds of its parts (as types.STEP_PARTS), memory in bytes, norm of the gradients."""
STEP = struct.Struct("<qqqddqq")
"""index, step, end_wall_ns, seconds, loss, tokens, generation."""
SPAN = span_rows.ROW
SEAL = struct.Struct("<Q")

AT_STATE = 256
AT_OPERATION = 384
AT_MESH = 512
AT_METERS = 640
AT_NAMES = 1024
NAME = 32
NAMES = 64
RECORD = 64  # bytes of a sealed record of a step or a span, which begins with its index
AT_STEPS = 4096
STEPS = 2048
AT_SPANS = AT_STEPS + STEPS * RECORD
SPANS = 8192
AT_GROUPS = AT_SPANS + SPANS * RECORD
GROUP_STRIDE = 192
"""A word, how many operations were begun in the group, the sealed group, and 4 bytes that stand for their sizes in
order (0 where an older worker does not write them). Slot 0 stays empty."""
AT_GROUP_SIZES = GROUP_STRIDE - 4
GROUPS = 64
AT_COUNTED = AT_GROUPS + GROUPS * GROUP_STRIDE
"""A byte for each slot: one of `COUNTED_*`."""
COUNTED_BY_TORCH, COUNTED_HERE, COUNTED_IN_PART = 0, 1, 2
"""Whose count of the group's operations is exact: torch's, the probe's, or neither."""

OPEN = struct.Struct("<qqiiihhh")
"""An operation that a thread waits for: since_ns, number; thread (the kernel's id), size, root; slot, kind, flags."""
OPEN_IS_TIMED, OPEN_IS_ALL, OPEN_IS_RECORDED = 1, 2, 4
"""Flags: its timeout is shorter than torch's default; the thread waits for all collectives of the group; torch records
this one, too."""
AT_OPEN = AT_COUNTED + GROUPS
OPEN_STRIDE, OPEN_ROWS = 64, 16

RECORD_HEAD = struct.Struct(f"<qqQHHH2x{GROUPS}q")
"""torch's own record: when the numbers were read, when the collectives under way were read, mask of the slots whose
timeout is shorter than torch's default, flags, collectives under way, collectives that are over; by slot, how many
collectives were begun (-1: not known)."""
RECORD_ROW = struct.Struct("<qihh")
"""A collective: number, size, slot, kind."""
RECORD_IS_COMPLETE = 1
RECORD_ROWS = 32
"""Rows of collectives under way."""
RECORD_OVER = 32
"""Rows of collectives that are over, behind those under way."""
RECORD_OVER_EACH = 4
"""Rows of one group that are kept. While a rank stays in an operation, its peers end few later ones without it: those
of a broadcast's tree, or a reduce to another rank."""
AT_RECORD = AT_OPEN + OPEN_ROWS * OPEN_STRIDE
RECORD_BYTES = RECORD_HEAD.size + (RECORD_ROWS + RECORD_OVER) * RECORD_ROW.size

PAST = struct.Struct("<qihh")
"""An operation with a root that was begun lately: number; root; slot, kind."""
AT_PAST = AT_RECORD + SEAL.size + RECORD_BYTES
PAST_STRIDE, PAST_ROWS = 24, 16

MOST_SERVICES = 125
SERVICES = struct.Struct(f"<{MOST_SERVICES}i")
"""Threads that torch started while it made process groups, by the kernel's ids; 0: none."""
AT_SERVICES = AT_PAST + PAST_ROWS * PAST_STRIDE
SIZE = -(-(AT_SERVICES + SEAL.size + SERVICES.size) // mmap.PAGESIZE) * mmap.PAGESIZE

INJECTIONS: tuple[str, ...] = ("", "exception", "segfault", "oom", "gil", "hang", "exit", "nan", "kill", "stop", "slow")
"""What the control word's low byte can ask for, by its value: append only."""
SLOWED: tuple[tuple[str, ...], ...] = (
    ("forward", "recompute"),
    ("backward", "backward_input", "backward_weight"),
    ("load",),
)
"""Kinds of spans that "slow" makes slower, by the next byte, after which come the percent."""
PLACES: tuple[str, ...] = (
    "",
    *(f"{where}{axis}" for axis in ("tp", "dp", "pp") for where in ("", "before-", "after-")),
)
"""Where it strikes, by the next byte: in the next operation of a mesh axis, before or after it; else at once."""


_MOST_BEGUN = (1 << 39) - 1
_HEAD = struct.Struct(f"<Qq{RECORD - 16}x")


def begun_word(place: int, slot: int, kind: int, number: int) -> int:
    """`place`: number of the record of OPERATION in which it was begun."""
    return place & 0xFF | slot << 8 | kind << 16 | (number & _MOST_BEGUN) << 24


def begun_from(word: int, place: int) -> tuple[int, int, int]:
    """Slot, kind and sequence number; slot 0 where none was begun in this place."""
    if word <= 0 or word & 0xFF != place & 0xFF:
        return 0, 0, -1
    return word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24


def seal(payload: bytes) -> bytes:
    """The payload with its checksum in front. The checksum is never 0, so that an empty file is not a value."""
    return SEAL.pack(crc32(payload) | 1 << 32) + payload


class Buffer(Protocol):
    """Where a probe file's bytes are: mapped, or copied out."""

    def __getitem__(self, where: slice, /) -> bytes: ...


def open_sealed(buffer: Buffer, at: int, size: int) -> bytes | None:
    """The payload of `size` bytes sealed at `at`; None when it is half-written or was never written."""
    return unsealed(buffer[at : at + SEAL.size + size])


def unsealed(raw: bytes) -> bytes | None:
    """The payload of a sealed block; None when it is half-written or was never written."""
    payload = raw[SEAL.size :]
    return payload if SEAL.unpack_from(raw)[0] == crc32(payload) | 1 << 32 else None


def records(buffer: Buffer, ring: int, slots: int, first: int, end: int) -> list[bytes] | None:
    """The payloads of records `first` to `end` (exclusive) of the ring at `ring`; None unless all are there and whole.

    Looks at them all together: one by one takes four times as long.
    """
    if not first < end <= first + slots:
        return None
    a, b = (ring + at % slots * RECORD for at in (first, end))
    raw = buffer[a:b] if a < b else buffer[a : ring + slots * RECORD] + buffer[ring:b]
    payloads = [raw[at : at + RECORD - SEAL.size] for at in range(SEAL.size, len(raw), RECORD)]
    sealed = zip([crc32(payload) | 1 << 32 for payload in payloads], range(first, end), strict=True)
    return payloads if list(_HEAD.iter_unpack(raw)) == list(sealed) else None


def create(path: str, rank: int, generation: int, now_ns: int) -> None:
    """Make an empty probe file, whole or not at all; one that is there already is replaced.

    Raises OSError where the file system has no room: storing to a hole that cannot be filled would be a SIGBUS in
    the middle of training, so all blocks are reserved here.
    """
    header = HEADER.pack(MAGIC, SIZE, STEPS, SPANS, NAMES, rank, generation, now_ns)
    part = f"{path}.{os.getpid()}.part"
    fd = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, header, 0)
        os.rename(part, path)
    except BaseException:
        os.unlink(part)
        raise
    finally:
        os.close(fd)


def map_file(path: str) -> tuple[mmap.mmap, int, int]:
    """Map a probe file for reading and writing: the map, its rank and its generation.

    Raises Unavailable when it cannot be opened and ProtocolError when it is not a probe file of this version.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"cannot open the probe file {path}: {error.strerror}") from None
    try:
        rank, generation = read_header(path, fd, os.fstat(fd).st_size)
        return mmap.mmap(fd, SIZE), rank, generation
    finally:
        os.close(fd)


def read_header(path: str, fd: int, length: int) -> tuple[int, int]:
    """The rank and the generation that a probe file of `length` bytes is for. ProtocolError when it is none."""
    head = os.pread(fd, HEADER.size, 0)
    if len(head) < HEADER.size:
        raise ProtocolError(f"{path} is no probe file: {length} bytes are too few for its header")
    magic, size, steps, spans, names, rank, generation, _ = HEADER.unpack(head)
    if magic != MAGIC:
        raise ProtocolError(f"{path} is no probe file of this version: it starts with {magic!r}, not {MAGIC!r}")
    if (size, steps, spans, names) != (SIZE, STEPS, SPANS, NAMES) or length < SIZE:
        raise ProtocolError(f"the probe file {path} is damaged: {length} bytes of {SIZE}, header says {size}")
    if not 0 <= rank < MAX_RANKS or not 0 <= generation <= MAX_GENERATION:
        raise ProtocolError(f"the probe file {path} is damaged: it is for rank {rank} of generation {generation}")
    return rank, generation
