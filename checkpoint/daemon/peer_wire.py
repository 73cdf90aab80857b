"""What two checkpoint daemons say to each other: frames over TCP, and the proof that both know the job's secret.

    client: {"version", "job", "nonce"}     server: {"nonce"}
    client: {"proof"}                       server: {"proof"}, or the end of the line

Each proof is an HMAC-SHA256 over role, job and both nonces, so neither can be used again or sent back. The client
proves first: a stranger learns nothing, not even whether the job is known. The proofs authenticate both ends; against
changes on the way the bytes have checksums, as the job's other traffic has at best.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.errors import CheckpointError

VERSION = 1
IDLE_S = 30.0
"""How long either end waits for the other's next byte."""
_GREETING_S = 5.0
_GREETING_BYTES = 4 << 10
HEADER_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class PeerRefused(CheckpointError):
    """The other daemon would not, in its words."""


class PeerWire:
    """Frames on a connected socket. Raises OSError (a time-out too), ValueError for what is no frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, separators=(",", ":")).encode()
        self.sock.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self, limit: int = HEADER_BYTES) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > limit:
            raise ValueError(f"a frame of {length} bytes, at most {limit} are taken")
        message = json.loads(self._exactly(length))
        if not isinstance(message, dict):
            raise ValueError("a frame that is no JSON object")
        return message

    def receive_into(self, memory: memoryview) -> None:
        """Fill `memory`."""
        done = 0
        while done < len(memory):
            count = self.sock.recv_into(memory[done:])
            if not count:
                raise ConnectionError("the peer closed the connection")
            done += count

    def _exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:  # grows with what arrives: a length alone takes no memory
            piece = self.sock.recv(min(length - len(content), 1 << 20))
            if not piece:
                raise ConnectionError("the peer closed the connection")
            content += piece
        return bytes(content)


def greet(wire: PeerWire, job: str, secret: bytes) -> None:
    """The client's part. Raises PeerRefused when the other end does not know the secret, OSError."""
    wire.sock.settimeout(_GREETING_S)
    mine = secrets.token_hex(16)
    try:
        wire.send({"version": VERSION, "job": job, "nonce": mine})
        theirs = str(wire.receive(_GREETING_BYTES)["nonce"])
        wire.send({"proof": _proof(secret, "client", job, mine, theirs)})
        proof = str(wire.receive(_GREETING_BYTES)["proof"])
    except (KeyError, ValueError):
        raise PeerRefused("the peer is not a checkpoint daemon") from None
    except ConnectionError:
        raise PeerRefused("it does not know the job, or has another secret") from None
    if not hmac.compare_digest(proof, _proof(secret, "server", job, mine, theirs)):
        raise PeerRefused("it does not know the job's secret")
    wire.sock.settimeout(IDLE_S)


def be_greeted(wire: PeerWire, secret_of: Callable[[str], bytes | None]) -> str:
    """The server's part; the job. `secret_of` gives a job's secret. Raises PeerRefused, OSError, ValueError."""
    wire.sock.settimeout(_GREETING_S)
    try:
        hello = wire.receive(_GREETING_BYTES)
        job, theirs = str(hello["job"]), str(hello["nonce"])
        if hello["version"] != VERSION or len(theirs) != 32:
            raise PeerRefused("uses another version")
        mine = secrets.token_hex(16)
        wire.send({"nonce": mine})
        proof = str(wire.receive(_GREETING_BYTES)["proof"])
    except KeyError:
        raise ValueError("an invalid greeting") from None
    known = secret_of(job)
    secret = known or secrets.token_bytes(32)
    if not hmac.compare_digest(proof.encode(), _proof(secret, "client", job, theirs, mine).encode()) or not known:
        raise PeerRefused("does not know the job's secret")
    wire.send({"proof": _proof(secret, "server", job, theirs, mine)})
    wire.sock.settimeout(IDLE_S)
    return job


def _proof(secret: bytes, role: str, job: str, client: str, server: str) -> str:
    text = json.dumps(["holdfast-peer", VERSION, role, job, client, server])
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
