"""Requests to one process that go out before the replies to earlier ones are in, and again after a reconnect.

One thread asks, one receives. A thread for each connection sends, also what was asked before there was one: no request
waits for a reply before it goes out, and no two ends wait for each other to read. The replies come in the order of the
requests. What was asked twice, for the connection broke before the reply, is applied and counted once: every request
carries its trainer and number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.retry import Backoff
from holdfast.trainer.embeddings.servers.keys import Keys, Rows
from holdfast.trainer.embeddings.servers.link import NO_KEYS, NO_ROWS, Link, Message, connect

REPLY_S = 330.0
"""More than a server waits for other trainers."""
RETRY = Backoff(initial=0.05, cap=1.0, deadline=10.0)


class Stream:
    """`what` names the process in errors: "embedding server 1"."""

    def __init__(self, address: str, secret: bytes, what: str, retry: Backoff = RETRY) -> None:
        self._address, self._secret, self._what, self._retry = address, secret, what, retry
        self._link: Link | None = None
        self._open = deque[tuple[dict[str, Any], Keys, Rows]]()
        """Requests without a reply."""
        self._sent = 0
        """How many of them, from the oldest on, were sent on this connection."""
        self._changed = threading.Condition()
        """Guards the three above; nobody sends or receives while holding it."""

    @property
    def waiting(self) -> int:
        """Requests without a reply."""
        return len(self._open)

    def ask(self, head: dict[str, Any], keys: Keys = NO_KEYS, rows: Rows = NO_ROWS) -> None:
        """Send a request, without waiting for it to go out. Of a broken connection the receiver hears."""
        with self._changed:
            self._open.append((head, keys, rows))
            self._changed.notify_all()

    def receive(self) -> Message:
        """The reply to the oldest request. Unavailable when there is none in spite of retries; HoldfastError or
        UsageError when it is a refusal."""
        while True:
            link = self._link or self._connect()
            try:
                message = link.receive()
            except OSError:
                self._drop(link)
                continue
            with self._changed:
                self._open.popleft()
                self._sent -= 1
            if "error" in message.head:
                kind = UsageError if message.head.get("usage") else HoldfastError
                raise kind(str(message.head["error"]))
            return message

    def close(self) -> None:
        if self._link is not None:
            self._drop(self._link)

    def _connect(self) -> Link:
        started = time.monotonic()
        for delay in self._retry.delays():
            try:
                link = connect(self._address, self._secret, REPLY_S)
            except OSError as error:
                if time.monotonic() - started + delay > self._retry.deadline:
                    reason = error.strerror or error
                    raise Unavailable(f"{self._what} at {self._address} does not reply: {reason}") from None
                time.sleep(delay)
                continue
            with self._changed:
                self._link = link
            threading.Thread(target=self._send_all, args=(link,), daemon=True).start()
            return link
        raise AssertionError("delays have no end")

    def _send_all(self, link: Link) -> None:
        """Until the connection ends: each request that was not sent on it yet."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._link is not link or self._sent < len(self._open))
                if self._link is not link:
                    return
                request = self._open[self._sent]
                self._sent += 1
            try:
                link.send(*request)
            except OSError:
                link.shut()  # which wakes the receiver
                return

    def _drop(self, link: Link) -> None:
        link.shut()
        with self._changed:
            self._link, self._sent = None, 0
            self._changed.notify_all()
