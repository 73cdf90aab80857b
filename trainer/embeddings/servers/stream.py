"""Requests to one process that go out before the replies to earlier ones are in, and again after a reconnect.

One thread asks, one receives. The replies come in the order of the requests. What was asked twice, for the connection
broke before the reply, is applied and counted once: every request carries its trainer and number.
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
        self._sending = threading.Lock()
        """Held while bytes go out, which may take until the other end reads; `_state` never is."""
        self._state = threading.Lock()

    @property
    def waiting(self) -> int:
        """Requests without a reply."""
        return len(self._open)

    def ask(self, head: dict[str, Any], keys: Keys = NO_KEYS, rows: Rows = NO_ROWS) -> None:
        """Send a request. Of a broken connection the receiver hears."""
        with self._sending:
            with self._state:
                self._open.append((head, keys, rows))
                # After a reconnect the receiver sends what is open one by one, or both ends could wait for the other
                # to read.
                is_next = self._link is not None and self._sent == len(self._open) - 1
                self._sent += is_next
            if is_next:
                self._send(head, keys, rows)

    def receive(self) -> Message:
        """The reply to the oldest request. Unavailable when there is none in spite of retries; HoldfastError or
        UsageError when it is a refusal."""
        while True:
            link = self._link or self._connect()
            with self._state:
                is_sent = self._sent > 0
            if not is_sent:
                self._send_oldest()
            try:
                message = link.receive()
            except OSError:
                self._drop(link)
                continue
            with self._state:
                self._open.popleft()
                self._sent -= 1
            if "error" in message.head:
                kind = UsageError if message.head.get("usage") else HoldfastError
                raise kind(str(message.head["error"]))
            return message

    def close(self) -> None:
        if self._link is not None:
            self._link.shut()

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
            with self._sending, self._state:
                self._link = link
            return link
        raise AssertionError("delays have no end")

    def _send_oldest(self) -> None:
        with self._sending:
            with self._state:
                if self._sent or not self._open:
                    return
                self._sent = 1
                request = self._open[0]
            self._send(*request)

    def _send(self, head: dict[str, Any], keys: Keys, rows: Rows) -> None:
        link = self._link
        if link is None:
            return
        try:
            link.send(head, keys, rows)
        except OSError:
            link.shut()  # which wakes the receiver

    def _drop(self, link: Link) -> None:
        link.shut()
        with self._sending, self._state:
            self._link, self._sent = None, 0
