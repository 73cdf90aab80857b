"""What a number or a name may be that a worker, an agent or a user sends: every limit in one place.

The probe and its reader clamp, the wire leaves out what is beyond, the HTTP API refuses it: docs/wire.md has the table.
Standard library only, because the probe runs in other people's training processes.
"""

import math

MAX_STEP = (1 << 53) - 1
"""Of a step's number: what JSON and JavaScript still hold exactly."""
MAX_SPAN_STEP = (1 << 31) - 1
"""The same in a span, where it has 32 bits."""
MAX_TOKENS = 1 << 40
"""In one step of one worker: a million of them still fit in a signed 64-bit sum."""
MAX_SECONDS = 1e9
"""Of a duration or an age: 31 years."""
MAX_COUNT = (1 << 62) - 1
"""Of a counter: bytes, tokens of a run, operations."""
MAX_PID = 1 << 22
"""As in the kernel, on 64 bits."""
MAX_RANKS = 1 << 18
"""Workers of a job: more than any published one has, 16 on each of MAX_NODES, and what one controller can keep a row
for each of."""
MAX_GENERATION = (1 << 31) - 1

MAX_NODES = 16_384
"""Nodes that a controller knows. Beyond it the longest absent one without references is removed, or a hello is
refused."""
MAX_NAME = 256
"""Characters of a name: of a node, a host, a device, a gauge, an operation."""
MAX_GAUGES = 4_096
"""Gauges of a host in one frame."""
MAX_GPUS = 64
"""GPUs of a node."""
MAX_NICS = 256
"""Network devices of a node."""
MAX_FRAME_STEPS = 20_000
"""Steps in one frame."""
MAX_KEPT_STEPS = 200_000
"""Steps that an agent keeps for a controller that is away; the oldest go first."""
MAX_WORKERS = 1_024
"""Workers of a node."""
MAX_GROUPS = 64
"""Groups of one worker."""
MAX_THREADS, MAX_OPERATIONS = 64, 64
"""Threads and open operations of one worker that are reported."""
MAX_PAST = 48
"""Operations of one worker that are over, and are reported all the same."""
MAX_SPAN_NAMES = 64
"""Names of spans and groups of one worker."""
MAX_KINDS = 1_024
"""Different names of spans, or of groups, in one look at a job; further ones count as "other"."""
MAX_SPANS = 16_384
"""Spans of one worker in one message."""
MAX_LINE = 32 << 10
"""Characters of a text in an event or of a piece of a log."""
MAX_PIECE = 1 << 20
"""Bytes of what an agent sends at once, and so of what a controller reads from a peer before its hello."""
MAX_MESSAGE = 64 << 20
"""Bytes of a message that comes in pieces."""
MAX_ALERTS = 6
"""Alerts of one node, or about one subject, within a minute."""
MAX_INCIDENTS = 10_000
"""Incidents that a controller holds in memory; the journal keeps all."""
MAX_JOBS = 256
"""Jobs in the queue or running; and of those that are over, as many stay in memory at most."""


def whole(value: int, low: int, high: int) -> int:
    """`value`, or the nearer of the two limits."""
    return low if value < low else high if value > high else value


def amount(value: float, high: float = MAX_SECONDS) -> float:
    """`value` within 0 and `high`; NaN, which means unknown, stays."""
    return value if math.isnan(value) else 0.0 if value < 0 else high if value > high else value


def text(value: str, most: int = MAX_LINE) -> str:
    """At most so many characters of it, in which no lone surrogate is left: UTF-8 has none."""
    return value[:most].encode("utf-8", "replace").decode()


Triple = tuple[int, int, int]


def is_place(coordinate: Triple | None, sizes: Triple | None) -> bool:
    """Whether a worker may have this coordinate in a mesh of these sizes. Sizes of 0 are unknown ones."""
    if coordinate is None:
        return sizes is None
    a, b, c = coordinate
    x, y, z = sizes or (0, 0, 0)
    if x == y == z == 0:
        return min(coordinate) >= 0 and max(coordinate) < MAX_RANKS
    return 0 <= a < x and 0 <= b < y and 0 <= c < z and x * y * z <= MAX_RANKS
