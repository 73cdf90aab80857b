"""Whether a worker's main thread computes in Python, seen from who waits for the interpreter's lock.

A worker with a GPU needs this: CUDA spins while it waits, so that processor time says nothing. It spins without the
lock. Who computes in Python holds it, and the probe's thread, which wakes ten times a second, has to ask for it.
"""

from collections import deque

from holdfast.agent.probe_file.memory import TICK_S
from holdfast.agent.processes.proc_files import parse_status, read

COMPUTES, HANDS_OVER = 0.08, 2.0
"""Share of a core, and times a second, from which the main thread is taken for one that computes in Python."""
WINDOW_S, SHORT_S = 1.0, 0.5
"""Seconds over which both are counted, and below which one hand-over is enough. In the 0.1 s between two looks a single
wait would read as ten a second: a driver's lock, or the probe's thread awake twice. Two ranks in cudaDeviceSynchronize
moved five times in 0.8 s on a GPU while looks were that close, and never in the 4 s with one look a second."""
_MOST_WAITS = 160.0
"""Of the probe's thread a second. It waits in pieces of 5 ms: above this it does not get the lock twice a second, and
whoever holds it may do anything."""
_BY_OTHERS = 80.0
"""More waits of the probe's thread a second, beyond its sleeps, than a thread causes that holds the lock all the time:
25 to 30 measured, also with four threads to a core."""


class InterpreterLock:
    """Of one worker."""

    def __init__(self, folder: str, tick_thread: int) -> None:
        """`folder`: of the process, under /proc. `tick_thread`: the probe's; 0 where it is not known."""
        self._main = f"{folder}/task/{folder.rpartition('/')[2]}"
        self._tick = f"{folder}/task/{tick_thread}" if tick_thread else ""
        self._counts: deque[tuple[float, int, int, int, float]] = deque(maxlen=64)

    def is_handed_over(self, now: float, ran_ns: int, others_ran: float) -> bool:
        """Whether it was in the last second, by a main thread that has used the processor.

        `others_ran`: seconds for which threads that may hold the lock too have run or waited for a processor, in all.
        """
        counts = self._counts
        counts.append((now, ran_ns, _waits(self._main), _waits(self._tick), others_ran))
        while len(counts) > 2 and now - counts[1][0] >= WINDOW_S:
            counts.popleft()
        seconds = now - counts[0][0]
        if seconds <= 0:
            return False
        ran, given, asked, others = (new - old for new, old in zip(counts[-1][1:], counts[0][1:], strict=True))
        if ran / 1e9 < COMPUTES * seconds:
            return False
        # Where both threads share a core the main one is put aside as soon as it gives the lock away, and has it back
        # before it could wait for it: then only the other thread's waits show that somebody held it. One of its sleeps
        # may be of the time before.
        least = 1.0 + seconds / TICK_S + HANDS_OVER * seconds + _BY_OTHERS * others
        hands_over = HANDS_OVER * (max(seconds, 1.0) if seconds >= SHORT_S else seconds)
        return given >= hands_over or least <= asked <= _MOST_WAITS * seconds


def _waits(task: str) -> int:
    """How often it went to sleep or waited, of its own will."""
    return (parse_status(read(f"{task}/status"), "voluntary_ctxt_switches") or 0) if task else 0
