"""Spans as rows of bytes: how a worker writes them, how an agent packs them, what a controller unpacks.

Standard library only: the first two do without numpy. Packed rows are turned round first, so that the like bytes of
all rows lie together (the highest bytes of all times, say); that makes them a third as large under the same zlib.
"""

import struct
import zlib

from holdfast.base.errors import ProtocolError

ROW = struct.Struct("<qqqqiIhhhhii")
"""index, start_ns, end_ns, bytes; step, CPU time of the thread in units of 100 ns (0: not known); kind, stage, turn,
group (kind and group: numbers of names, 0 none); micro-batch (-1 none), sequence number (-1 none)."""
THREAD = "thread"
"""Kind of the row, without length, that ends a step: of the thread that made the step its CPU time, and in place of
bytes the nanoseconds for which it was ready to run and kept from it (-1: not known). Then, in place of micro-batch and
sequence number, its voluntary and involuntary context switches (-1: not known)."""
STEP_AT = 32
"""Where a row has its step."""


def pack(rows: bytes) -> bytes:
    """Whole rows, made small."""
    turned = b"".join(rows[i :: ROW.size] for i in range(ROW.size))
    # No more memory than the rows fill: clearing 256 KiB costs more than packing a few of them.
    window = min(max(len(turned).bit_length(), 9), zlib.MAX_WBITS)
    deflate = zlib.compressobj(1, wbits=window, memLevel=window - 7)
    return deflate.compress(turned) + deflate.flush()


def unpack(data: bytes, count: int) -> bytes:
    """The inverse of `pack`. ProtocolError where these are not `count` rows."""
    inflate = zlib.decompressobj()
    try:
        turned = inflate.decompress(data, count * ROW.size + 1)
    except zlib.error as error:
        raise ProtocolError(f"spans: {error}") from None
    if len(turned) != count * ROW.size or not inflate.eof:
        raise ProtocolError(f"spans: not the {count} rows that were announced")
    rows = bytearray(len(turned))
    for i in range(ROW.size):
        rows[i :: ROW.size] = turned[i * count : (i + 1) * count]
    return bytes(rows)
