"""A worker's line to the checkpoint daemon of its node. Synchronous, no torch, used from one thread.

Should the daemon die, the worker trains on. `poll` and `snapshot` look for the daemon that takes its place, say again
what the last one knew, and have the upload that was under way taken up. Neither of them raises.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.base import private
from holdfast.base.errors import Unavailable, UsageError
from holdfast.base.local_socket import short_path
from holdfast.checkpoint.daemon.messages import Join, SnapshotTaken, WorkerHello
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.snapshots.files import ABSENT, SOCKET

CALL_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0
"""For a daemon that is being started, maybe again: a worker that does not wait resumes from an older step."""
_AGAIN_S = 0.5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker is."""

    node: str
    switch: str
    address: tuple[str, int]
    """Of the node's daemon, for other nodes."""


class DaemonRefused(CheckpointError, Unavailable):
    """The daemon does not answer in time, or would not, in its words."""


class DaemonClient:
    """Use it from one thread. Every call ends by a deadline."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`folder`: HOLDFAST_SNAPSHOTS. Connects at the first call."""
        self.folder = folder
        self._clock = clock
        self._sock: socket.socket | None = None
        self._in = bytearray()
        self._notes: list[Json] = []
        self._answers: list[Json] = []
        self._owed: deque[Json] = deque()  # requests whose answers are still to come, with no caller waiting
        self._hello: Json | None = None
        self._join: Json | None = None
        self._persisting: Json | None = None
        self._tried = -_AGAIN_S

    def hello(self, who: WorkerHello, wait_s: float = START_TIMEOUT_S) -> WorkerPlace:
        """Identify this worker. A starting daemon gets `wait_s` seconds, unless its agent says that it does not
        start. Raises DaemonRefused."""
        self._hello = {"do": "hello", **asdict(who)}
        end = self._clock() + wait_s
        while not self._connect():
            with contextlib.suppress(OSError):
                raise DaemonRefused((self.folder / ABSENT).read_text().strip())
            if self._clock() > end:
                raise DaemonRefused(f"no checkpoint daemon answers in {self.folder}")
            time.sleep(0.05)
        answer = self._ask(self._hello)
        return WorkerPlace(answer["node"], answer["switch"], (answer["address"][0], int(answer["address"][1])))

    def join(self, order: Join) -> None:
        """Say what is to be done with this worker's snapshots. Raises DaemonRefused."""
        self._join = {"do": "join", **order.encode()}
        self._ask(self._join)

    def snapshot(self, taken: SnapshotTaken) -> bool:
        """A snapshot is complete in the arena; False when no daemon is connected now.

        One that is to be persisted is reported to the next daemon as soon as there is one. What the daemon refuses
        comes back as a note.
        """
        message = {"do": "snapshot", **asdict(taken)}
        if taken.persist:
            self._persisting = message
            if self._sock is None:
                return self._again()
        elif self._sock is None and not self._again():
            return False
        try:
            self._send(message)
            if not taken.persist:  # that may be every step: no time is spent on waiting
                self._owed.append(message)
                return True
            answer = self._answer()
        except DaemonRefused:
            return False
        self._look_at(message, answer)
        return bool(answer["ok"])

    def leave(self, forget: bool = False) -> None:
        """The worker is done; with `forget` the job is, too, and its snapshots may go."""
        self._persisting = None
        if self._sock is not None:
            with contextlib.suppress(DaemonRefused):  # it is gone, and knows
                self._ask({"do": "leave", "forget": forget})
        self._hello = self._join = None
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether a daemon is at the other end, as far as we know."""
        return self._sock is not None

    def poll(self) -> list[Json]:
        """Notes that have come since the last time. Does not wait; a daemon that died is looked for again."""
        if self._sock is None and self._join is not None:
            self._again()
        if self._sock is not None:
            with contextlib.suppress(DaemonRefused):
                while self._sock is not None and select.select([self._sock], [], [], 0)[0]:
                    self._read()
        notes, self._notes = self._notes, []
        for note in notes:
            if note["note"] in ("persisted", "refused") and self._persisting is not None:
                self._persisting = None if note["step"] == self._persisting["step"] else self._persisting
        return notes

    def close(self) -> None:
        """Disconnect; what is under way goes on. Idempotent."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._in.clear()
        self._answers.clear()
        self._owed.clear()

    def _again(self) -> bool:
        """Connect to the daemon that took the place of one that died, and send it what that one knew."""
        if self._clock() - self._tried < _AGAIN_S or self._hello is None or self._join is None:
            return False
        self._tried = self._clock()
        if not self._connect():
            return False
        for message in (self._hello, self._join, self._persisting):
            if message is not None:
                try:
                    self._send(message)
                except DaemonRefused:
                    return False
                self._owed.append(message)
        return True

    def _connect(self) -> bool:
        self.close()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(CALL_TIMEOUT_S)
        try:
            private.check_shared(self.folder)  # another user's daemon would get all that we train
            with short_path(self.folder, SOCKET) as path:
                sock.connect(path)
        except UsageError as error:
            sock.close()
            raise DaemonRefused(str(error)) from None
        except OSError:
            sock.close()
            return False
        self._sock = sock
        return True

    def _ask(self, message: Json) -> Json:
        self._send(message)
        answer = self._answer()
        if not answer["ok"]:
            raise DaemonRefused(str(answer["error"]))
        return answer

    def _answer(self) -> Json:
        while not self._answers:
            self._read()
        return self._answers.pop(0)

    def _look_at(self, message: Json, answer: Json) -> None:
        """Add a note of what the daemon refused."""
        if answer["ok"]:
            return
        if message["do"] == "snapshot" and not message["persist"]:
            self._notes.append({"note": "peer-failing", "step": message["step"], "error": str(answer["error"])})
        elif self._persisting is not None:
            self._notes.append({"note": "refused", "step": self._persisting["step"], "error": str(answer["error"])})
            self._persisting = None

    def _send(self, message: Json) -> None:
        if self._sock is None:
            raise DaemonRefused("not connected to the checkpoint daemon")
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.close()
            raise DaemonRefused(f"the checkpoint daemon is gone: {error}") from None

    def _read(self) -> None:
        """Wait for the next message and read it."""
        if self._sock is None:
            raise DaemonRefused("not connected to the checkpoint daemon")
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            self.close()
            raise DaemonRefused(f"the checkpoint daemon does not answer: {error}") from None
        if not data:
            self.close()
            raise DaemonRefused("the checkpoint daemon closed the connection")
        self._in += data
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: Json) -> None:
        if "note" in message:
            self._notes.append(message)
        elif not self._owed:
            self._answers.append(message)
        else:
            self._look_at(self._owed.popleft(), message)
