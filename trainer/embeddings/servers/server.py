"""A process that holds a share of the tables: `python -m holdfast.trainer.embeddings.servers.server`.

One thread serves each connection; the rules are in `tables`. Imports no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.address import bind, parse_address
from holdfast.base.errors import HoldfastError, ProtocolError, UsageError
from holdfast.base.files import read_bytes
from holdfast.base.service import follow_parent, report
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.servers.link import SECRET, Link, Message, accept, address_of
from holdfast.trainer.embeddings.servers.redis_rows import RedisRows
from holdfast.trainer.embeddings.servers.tables import Spec, Tables

WAIT_S = 300.0
"""How long a request waits for the other trainers. One that died is noticed much earlier, by who started it."""


class Server:
    """The requests to one share. Safe to call from many threads."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._run = ""
        self._tables: Tables | None = None
        self._store = ""
        self._place = (0, 1)
        self._stored: dict[int, snapshots.Sums | Exception] = {}

    def serve(self, message: Message) -> tuple[dict[str, Any], Any, Any] | dict[str, Any]:
        """The reply to a request: its head, with keys and rows where it has some. Raises HoldfastError."""
        head = message.head
        actions: dict[str, Callable[[Message], Any]] = {
            "open": self._open,
            "fetch": self._fetch,
            "write": self._write,
            "stored": self._wait_stored,
            "figures": lambda message: dict(self._opened(message).figures()),
            "dump": lambda message: ({}, *self._opened(message).copy()),
        }
        try:
            return actions[head["do"]](message)  # type: ignore[no-any-return]
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"a request that is none: {error}") from None

    def _open(self, message: Message) -> dict[str, Any]:
        """Begin a run with new tables, or with those of a snapshot. Another run's are dropped."""
        head = message.head
        spec, place, step = Spec(**head["spec"]), (int(head["number"]), int(head["servers"])), int(head["step"])
        rows = None
        if head.get("tables"):
            rows = RedisRows(head["tables"], head["tables_name"], *place, spec.width, spec.dtype)
        try:
            tables = snapshots.load_share(head["store"], step, spec, *place, rows) if step else Tables(spec, rows)
        except OSError as error:
            raise HoldfastError(f"cannot read the snapshot of step {step}: {error.strerror or error}") from None
        with self._changed:
            self._run, self._tables, self._store, self._place = head["run"], tables, head["store"], place
            self._stored = {}
            self._changed.notify_all()
        return {}

    def _fetch(self, message: Message) -> tuple[dict[str, Any], Any, Any]:
        head = message.head
        with self._changed:
            tables = self._opened(message)
            self._wait(lambda: tables.may_fetch(head["after"]), f"write-backs of iteration {head['after']}")
            return {}, message.keys[:0], tables.fetch(head["trainer"], head["batch"], message.keys)

    def _write(self, message: Message) -> dict[str, Any]:
        head = message.head
        number = head["number"]
        with self._changed:
            tables = self._opened(message)
            self._wait(lambda: tables.may_write(number), f"all trainers' write-backs before iteration {number}")
            is_cut = tables.write(head["trainer"], number, message.keys, message.rows, cut=head["cut"])
            if is_cut:
                copied = tables.copy()  # stage 1: no iteration goes on before it is made
                threading.Thread(target=self._keep, args=(number + 1, self._run, *copied), daemon=True).start()
            self._changed.notify_all()
        return {}

    def _keep(self, step: int, run: str, keys: Any, rows: Any) -> None:
        """Stage 2, in a thread of its own."""
        try:
            outcome: snapshots.Sums | Exception = snapshots.write_share(
                self._store, step, run, *self._place, keys, rows
            )
        except (OSError, HoldfastError) as error:
            outcome = error
        with self._changed:
            if run == self._run:
                self._stored[step] = outcome
                self._changed.notify_all()

    def _wait_stored(self, message: Message) -> dict[str, Any]:
        step = message.head["step"]
        with self._changed:
            self._opened(message)
            self._wait(lambda: step in self._stored, f"the snapshot of step {step}")
            outcome = self._stored[step]
        if isinstance(outcome, Exception):
            raise HoldfastError(f"the snapshot of step {step} is not stored: {outcome}")
        return {"files": outcome}

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        run = self._run
        if not self._changed.wait_for(lambda: is_so() or run != self._run, self._wait_s):
            raise HoldfastError(f"waited {self._wait_s:g} s for {what}")
        if run != self._run:
            raise HoldfastError("another run has begun on this server")

    def _opened(self, message: Message) -> Tables:
        if self._tables is None or message.head["run"] != self._run:
            raise HoldfastError("the server does not know this run: it was started again, or serves another run")
        return self._tables


def accept_all(sock: socket.socket, secret: bytes, serve: Callable[[Message], Any]) -> None:
    """Accept connections of a listening socket for ever, one thread for each. OSError when it is closed."""
    while True:
        connection, _ = sock.accept()
        threading.Thread(target=_converse, args=(connection, secret, serve), daemon=True).start()


def _converse(connection: socket.socket, secret: bytes, serve: Callable[[Message], Any]) -> None:
    link: Link | None = None
    try:
        link = accept(connection, secret)
        while True:
            message = link.receive()
            try:
                reply = serve(message)
            except HoldfastError as error:
                reply = {"error": str(error), "usage": isinstance(error, UsageError)}
            head, *arrays = reply if isinstance(reply, tuple) else (reply,)
            link.send(head, *arrays)
    except (OSError, HoldfastError, ValueError):
        pass  # the other end is gone, or is none of the run: it gets no reply
    finally:
        connection.close()


def secret_of(file: Path | None) -> bytes:
    """The run's secret: of a file, else of the environment. UsageError without one."""
    found = read_bytes(file, "a file with the secret").strip() if file else os.environ.get(SECRET, "").encode()
    if len(found) < 16:
        raise UsageError("the secret has fewer than 16 bytes: give --secret-file FILE with a random one")
    return found


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal. Prints {"address": "HOST:PORT"} when it listens."""
    parser = argparse.ArgumentParser("python -m holdfast.trainer.embeddings.servers.server", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0 takes a free one")
    parser.add_argument("--secret-file", type=Path, metavar="FILE", help="who does not know its content is not served")
    options = parser.parse_args(argv)
    secret = secret_of(options.secret_file)
    with bind(*parse_address(options.listen)) as sock:
        sock.listen(64)  # who reads the line may connect at once
        print(json.dumps({"address": address_of(sock)}), flush=True)
        accept_all(sock, secret, Server().serve)
    return 0


if __name__ == "__main__":
    follow_parent()
    sys.exit(report(main))
