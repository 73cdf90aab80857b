"""What the other threads of a worker wait for: where its main thread waits for a lock, one of them is why.

This is no movement: a library's polling thread makes one system call after the other without end.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from holdfast.agent.activity.host_flow import is_asked
from holdfast.agent.activity.process_look import channel_of
from holdfast.agent.activity.waits import TIMER, Clocks, Look, describe
from holdfast.agent.processes.proc_files import parse_call, read

_MOST_NAMED = 2
_SAYS_NOTHING = ("", "a lock", TIMER)
_SERVES = ("epoll", "poll", "select")
"""Of several descriptors: threads that serve the others."""


class ThreadWaits:
    """Of one worker."""

    def __init__(self, folder: str) -> None:
        """`folder`: of the process, under /proc."""
        self._folder = folder
        self._known: dict[int, tuple[object, str, str]] = {}  # by thread: its key, words, wait channel

    def look(self, states: Mapping[int, str], present: Collection[int], look: Look, clocks: Clocks) -> None:
        """`states`: of the threads whose turn it is. `present`: all there are."""
        there = set(present)
        self._known = {tid: known for tid, known in self._known.items() if tid in there}
        for tid, state in states.items():
            task = f"{self._folder}/task/{tid}"
            call, channel = parse_call(read(f"{task}/syscall", 512)), channel_of(task)
            key = call, state, channel
            if tid not in self._known or self._known[tid][0] != key:
                words = describe(call, state, channel, look, clocks).words if state in ("S", "D") else ""
                self._known[tid] = key, words, channel

    def forget(self) -> None:
        self._known.clear()

    @property
    def asks_host(self) -> bool:
        """Whether what one of them waits for may be bytes of the host."""
        return any(is_asked(words, channel, "") for _, words, channel in self._known.values())

    @property
    def words(self) -> str:
        """Of the rarest first: pools of threads all wait for the same. Empty where that shows nothing."""
        counts = Counter(words for _, words, _ in self._known.values())
        reported = [words for words in counts if words not in _SAYS_NOTHING and not words.startswith(_SERVES)]
        rarest = sorted(reported, key=lambda words: counts[words])[:_MOST_NAMED]
        return "; ".join(f"{words}, {counts[words]} times" if counts[words] > 1 else words for words in rarest)
