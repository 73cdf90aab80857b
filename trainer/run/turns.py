"""The worker's side of turns on a node that jobs share (`holdfast.wire.turns`): forward and backward in turns, the
averaging of gradients and the update outside of them.

A worker never depends on it: where its agent is gone, or does not answer for long, it computes at once. One that is
alone on its slot pays one system call an iteration.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from holdfast.agent import probe
from holdfast.wire import turns as wire

_CONNECT_S = 5.0
_PATIENCE_S = 90.0
"""Longer than any turn of another lasts before the agent takes it back."""
_AGAIN_S = 1.0
"""Between two tries to reach an agent that was gone."""


class TurnTaker:
    def __init__(self, job: str, slot: str, path: str, patience_s: float = _PATIENCE_S) -> None:
        self._hello = f"{job} {slot}\n".encode()
        self._path, self._patience_s = path, patience_s
        self._socket: socket.socket | None = None
        self._is_alone = True
        self._has_turn = False
        self._tried_at = -_AGAIN_S
        self.waited_s = 0.0
        """For turns, altogether."""
        self.count = 0
        """Turns that it had."""

    def take(self) -> None:
        """Return when it is this worker's turn."""
        try:
            if self._socket is None and not self._connect():
                return
            self._read_modes()
            if not self._is_alone:
                self._ask()
        except OSError:
            self._lose()

    @property
    def has_turn(self) -> bool:
        return self._has_turn

    def give_back(self) -> None:
        """Nothing happens without one."""
        if not self._has_turn:
            return
        self._has_turn = False
        try:
            if self._socket is not None:
                self._socket.sendall(wire.BACK)
        except OSError:
            self._lose()

    @property
    def text(self) -> str:
        """What sharing has cost so far."""
        return f"waited {self.waited_s:.2f} s for {self.count} turns beside other jobs"

    def close(self) -> None:
        self._lose()

    def _connect(self) -> bool:
        now = time.monotonic()
        if now - self._tried_at < _AGAIN_S:
            return False
        self._tried_at = now
        one = socket.socket(socket.AF_UNIX)
        try:
            one.settimeout(_CONNECT_S)
            one.connect(self._path)
            one.sendall(self._hello)
            self._is_alone = _last_mode(one.recv(64), True)
        except OSError:
            one.close()
            return False
        self._socket = one
        return True

    def _read_modes(self) -> None:
        """What the agent has said since the last turn, without waiting."""
        assert self._socket is not None
        self._socket.settimeout(0.0)
        try:
            data = self._socket.recv(64)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        self._is_alone = _last_mode(data, self._is_alone)

    def _ask(self) -> None:
        assert self._socket is not None
        began = time.monotonic()
        end = began + self._patience_s
        with probe.operation(wire.WAITING):
            self._socket.settimeout(self._patience_s)
            self._socket.sendall(wire.ASK)
            while not self._has_turn:
                self._socket.settimeout(max(0.001, end - time.monotonic()))
                data = self._socket.recv(64)  # TimeoutError is an OSError
                if not data:
                    raise ConnectionResetError
                self._is_alone = _last_mode(data, self._is_alone)
                self._has_turn = wire.TURN in data
        self.waited_s += time.monotonic() - began
        self.count += 1

    def _lose(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._is_alone, self._has_turn = None, True, False


def _last_mode(data: bytes, before: bool) -> bool:
    """Is the worker alone, as the newest of these bytes says?"""
    modes = [byte for byte in data if byte in (wire.ALONE[0], wire.SHARED[0])]
    return modes[-1] == wire.ALONE[0] if modes else before


def open_turns(environ: Mapping[str, str] = os.environ) -> TurnTaker | None:
    """None for a job that shares nothing."""
    slot, _, path = environ.get(wire.VARIABLE, "").partition(":")
    return TurnTaker(environ.get("HOLDFAST_JOB", "job"), slot, path) if slot.isdecimal() and path else None
