"""The live log of a job: followed through restarts of the controller, each line printed once."""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.base.errors import HoldfastError, NotFound, Unavailable
from holdfast.base.retry import Backoff
from holdfast.cli.common.client import OVER, Client, Json
from holdfast.cli.common.output import note

Key = tuple[int, str]
KEPT = 1000
"""Lines kept per rank and stream, to recognise them after a reconnection."""
BURST_S = 0.5
"""After a reconnection, lines are collected this long before they are compared with what was printed."""


@dataclass
class Seen:
    """The printed lines. A new connection starts with a tail of the log that may be printed already in part."""

    printed: dict[Key, deque[str]] = field(default_factory=dict)

    def add(self, line: Json) -> None:
        self.printed.setdefault(_key(line), deque(maxlen=KEPT)).append(line["text"])

    def fresh(self, tail: Iterable[Json]) -> list[Json]:
        """The lines of a tail that come after those that were printed."""
        lines = list(tail)
        texts: dict[Key, list[str]] = {}
        for line in lines:
            texts.setdefault(_key(line), []).append(line["text"])
        skip = {key: overlap(list(self.printed.get(key, ())), new) for key, new in texts.items()}
        result = []
        for line in lines:
            if skip[_key(line)] > 0:
                skip[_key(line)] -= 1
            else:
                result.append(line)
        return result


def overlap(printed: list[str], tail: list[str]) -> int:
    """How many lines at the head of `tail` end with the last that was printed.

    >>> overlap(["a", "b", "c"], ["b", "c", "d"])
    2
    """
    for end in range(len(tail), 0, -1):
        length = min(end, len(printed))
        if length and printed[-length:] == tail[end - length : end]:
            return end
    return 0


def split(chunk: Json) -> list[Json]:
    """A chunk as single lines: agents send what a worker printed in one go as one. What was left out counts once."""
    texts = str(chunk["text"]).removesuffix("\n").split("\n")
    return [{**chunk, "text": text, "dropped": 0 if i else chunk.get("dropped", 0)} for i, text in enumerate(texts)]


def _key(line: Json) -> Key:
    return int(line["rank"]), str(line["stream"])


class Follower:
    """Reads the log in a thread, so that a Ctrl-C in the main thread cuts no line. `lines` ends with None."""

    def __init__(self, client: Client, job: str, params: Mapping[str, object] | None = None) -> None:
        """`params`: which lines, as the route has them; without any all."""
        self.lines: queue.Queue[Json | None] = queue.Queue(maxsize=10_000)
        self.error: HoldfastError | None = None
        self._client, self._job = client, job
        self._params = dict(params or {})
        self._seen = Seen()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="job-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._follow()
        except HoldfastError as error:
            self.error = error
        finally:
            self.lines.put(None)

    def _follow(self) -> None:
        policy = Backoff(initial=0.1, cap=2.0)
        delays = policy.delays()
        reconnected = reported = False
        while True:
            try:
                for line in self._connection(reconnected):
                    delays = policy.delays()
                    reported = False
                    if not line.get("unfinished"):
                        self._seen.add(line)
                    self.lines.put(line)
                if self._is_over():
                    return
            except NotFound:
                return  # the controller does not know the job any more
            except Unavailable as error:
                if not reported:
                    note(f"{error}; trying again")
                reported = True
            reconnected = True
            time.sleep(next(delays))

    def _is_over(self) -> bool:
        """Whether the log is complete. A stream also ends with the controller, while the job continues."""
        if not self._ended:
            return False
        job = self._client.job(self._job)
        return job is None or job["state"] in OVER

    def _connection(self, reconnected: bool) -> Iterable[Json]:
        """Lines of one connection, without those that were printed before."""
        self._ended = False
        burst: list[Json] | None = [] if reconnected else None
        until = math.inf
        for name, line in self._client.log_events(self._job, **self._params):
            if math.isinf(until):  # a controller that has just started may be slow to answer
                until = time.monotonic() + BURST_S
            if name == "end":
                self._ended = True
                break
            if name == "unfinished" and burst is None:
                yield {**line, "unfinished": True}
            if burst is not None and time.monotonic() > until:
                yield from self._seen.fresh(burst)
                burst = None
            if name != "line":
                continue
            if burst is None:
                yield from split(line)
            else:
                burst += split(line)
        if burst:
            yield from self._seen.fresh(burst)
