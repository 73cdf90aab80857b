"""Whether a worker still runs the program in which its probe is: a script may replace it (exec) and keep its id.

Then the ticks in the probe file are those of a thread that is gone, and their age says nothing about the interpreter.
"""

from holdfast.agent.processes.proc_files import parse_image, parse_stat, read
from holdfast.wire import types as t

STALE_S = 0.5
"""Age of a tick from which its thread is looked for."""


class Images:
    """The programs that all workers of this node run."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}  # process -> its tick thread, and its image then

    def seen(self, sample: t.WorkerSample, tick_thread: int) -> t.WorkerSample:
        """The sample, without the age of a tick whose thread is gone; `left` if another program runs in its place."""
        if not sample.pid or not tick_thread:
            return sample
        if not sample.tick_age > STALE_S:
            if self._known.get(sample.pid, (0,))[0] != tick_thread:
                image = parse_image(read(f"{self._proc}/{sample.pid}/stat", 4096))
                # A thread that is there after the image was read belongs to it.
                if self._has(sample.pid, tick_thread):
                    self._known[sample.pid] = tick_thread, image
            return sample
        if self._has(sample.pid, tick_thread):
            return sample
        raw = read(f"{self._proc}/{sample.pid}/stat", 4096)
        stat, image = parse_stat(raw), parse_image(raw)
        if stat is None or stat.state in ("Z", "X"):
            return sample
        # The interpreter ends daemon threads when it ends itself: then the image is still the same.
        thread, before = self._known.get(sample.pid, (0, ()))
        is_same = bool(image) and thread == tick_thread and image == before
        return sample._replace(tick_age=t.NAN, left=not is_same)

    def _has(self, pid: int, thread: int) -> bool:
        return bool(read(f"{self._proc}/{pid}/task/{thread}/comm", 64))

    def keep(self, pids: set[int]) -> None:
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
