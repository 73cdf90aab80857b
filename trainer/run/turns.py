"""The worker's side of turns on a node that jobs share (`holdfast.wire.turns`): forward and backward in turns, the
averaging of gradients and the update outside of them.

A worker never depends on it: where its agent is gone, or does not answer for long, it computes at once. One that is
alone on its slot pays one system call an iteration.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

import torch

from holdfast.agent import probe
from holdfast.wire import turns as wire

_CONNECT_S = 5.0
_PATIENCE_S = 90.0
"""Longer than any turn of another lasts before the agent takes it back."""
_AGAIN_S = 1.0
"""Between two tries to reach an agent that was gone."""


class TurnTaker:
    def __init__(
        self, job: str, slot: str, path: str, patience_s: float = _PATIENCE_S, wait: Callable[[], None] = lambda: None
    ) -> None:
        """`path`: of the agent's socket; empty: this job shares nothing, and nothing is done. `wait`: until the device
        has done what it was given."""
        self._hello = f"{job} {slot}\n".encode()
        self._path, self._patience_s, self._wait = path, patience_s, wait
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
        if not self._path:
            return
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
        """Before what waits for other replicas, for whoever has the next turn must not wait for them. Nothing happens
        without a turn."""
        if not self._has_turn:
            return
        self._wait()
        self._has_turn = False
        try:
            if self._socket is not None:
                self._socket.sendall(wire.BACK)
        except OSError:
            self._lose()

    def close(self) -> None:
        """Leave, and say what it has cost."""
        self._lose()
        if self._path:
            print(f"waited {self.waited_s:.2f} s for {self.count} turns beside other jobs", flush=True)

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


def open_turns(device: torch.device, environ: Mapping[str, str] = os.environ) -> TurnTaker:
    """As the agent says in the environment of a worker whose job shares its nodes; else one that does nothing."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the others may wait for other replicas

    slot, _, path = environ.get(wire.VARIABLE, "").partition(":")
    return TurnTaker(environ.get("HOLDFAST_JOB", "job"), slot, path if slot.isdecimal() else "", wait=wait)
