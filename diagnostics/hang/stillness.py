"""What a worker without steps does, as seen from outside: busy, idle or held. Pure.

Evidence comes from outside of the process (`standing.Activity`): a process that computes, reads, writes or moves bytes
is busy, however long its interpreter has not run. That a worker cannot go on at all is a proof about threads and
operations (`closure`), never a sight of one process.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from holdfast.wire import types as t

STILL = 0.45
"""Seconds without movement, two windows of an agent, from which on a worker is idle and no longer busy."""
_SLOW_BYTES = 10_000.0
"""Bytes a second below which a transfer is not what the worker does, just something that moves."""
_SLOW_CORES = 0.04


class Liveness(StrEnum):
    DEAD = "dead"
    """It was proved that it cannot go on."""
    BUSY = "busy"
    """It computes, reads, writes, moves bytes, or waits for a child that does."""
    IDLE = "idle"
    """Neither: asleep, a lock, a quiet socket, a disk that does not answer."""
    HELD = "held"
    """Stopped, traced or frozen: its holder decides when it goes on."""
    UNKNOWN = "unknown"
    """Nothing was measured: its agent cannot or may not."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One worker as seen from outside. `text` goes on after its name: "rank 3 {text}"."""

    life: Liveness
    text: str
    quiet: float = math.nan
    """Seconds since anything moved."""
    ends_in: float = math.nan
    """Seconds until its system call ends by itself."""


def look(activity: t.Activity | None, *, stopped: bool = False, silent: bool = False, holder: str = "") -> Sight:
    """What one worker does.

    `stopped`: the kernel reports the process stopped. `silent`: its interpreter has not run for long. `holder`: what
    holds the process, in words; empty where nothing is known to.
    """
    if activity is not None and activity.is_prompt:
        return Sight(Liveness.BUSY, "waits at the prompt of a terminal or a debugger", activity.quiet)
    if holder:
        return Sight(Liveness.HELD, f"is held: {holder}")
    if stopped or (activity is not None and activity.state in ("T", "t")):
        return Sight(Liveness.HELD, "is stopped (SIGSTOP, or by a tracer)")
    if activity is None or not activity.state:
        return Sight(Liveness.UNKNOWN, "has no measured activity: its agent cannot inspect it")
    if activity.quiet < STILL:
        return Sight(Liveness.BUSY, _doing(activity), activity.quiet)
    if activity.waits_for == t.FROZEN:
        return Sight(Liveness.HELD, "is frozen by the cgroup freezer", activity.quiet)
    lock = "holds the interpreter lock and " if silent and activity.state not in ("R", "D") else ""
    return Sight(Liveness.IDLE, lock + _waiting(activity), activity.quiet, activity.ends_in)


def _doing(a: t.Activity) -> str:
    """The strongest sign of work first."""
    rates = [(a.written, "writes"), (a.read, "reads"), (a.network, "moves over the network")]
    rate, verb = max(rates)
    rest = f", while its main thread waits for {a.waits_for}" if a.thread and a.waits_for else ""
    if rate >= _SLOW_BYTES:
        if verb.startswith("moves"):
            return f"moves {size(rate)}/s over the network{rest}"
        return f"{verb} {size(rate)}/s{rest}"
    if a.children_cpu >= max(_SLOW_CORES, a.cpu):
        return f"waits for {a.waits_for or 'a child'}, which computes ({a.children_cpu:.2f} cores)"
    if a.cpu >= _SLOW_CORES and not a.has_gpu:
        return f"computes ({a.cpu:.2f} cores){rest}"
    if a.gpu is t.GpuUse.WORKS:
        return "waits for its GPU, which works"
    what = f" and waits for {a.waits_for}" if a.waits_for else ""
    return f"moved {max(0.0, a.quiet):.1f} s ago{what}"


def _waiting(a: t.Activity) -> str:
    said = f"waits for {a.waits_for}" if a.waits_for else "waits without any movement"
    if a.waits_for_gpu:
        events = "an event" if a.events_pending == 1 else f"{a.events_pending} events"
        said = f"waits for its GPU, which draws idle power with {events} pending: it waits for its peers"
    elif a.has_gpu and not a.waits_for and a.cpu >= _SLOW_CORES:
        is_known = a.gpu is t.GpuUse.WAITS
        said = f"spins in a wait for its GPU, {'which is idle' if is_known else 'of which it is unknown what it does'}"
    return f"{said}; {a.behind}" if a.behind else said


def size(num_bytes: float) -> str:
    """Bytes for people: "212 MB"."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
