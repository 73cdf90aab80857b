"""What a worker sends to the checkpoint daemon of its node: one JSON object a line, both ways. Pure.

    hello      which worker asks; the answer has the node's name and switch, and where its daemon listens for copies
    join       what is to be done with the worker's snapshots
    snapshot   one is complete; `persist`: make it part of a checkpoint, `peer`: copy it to the peer
    leave      the worker is done; `forget`: so is the job

Each gets one answer, {"ok": true, ...} or {"ok": false, "error": ...}. Notes come at any time: {"note": KIND, "step",
"bytes", "seconds", "error"}. Of stage 2: `persisted` (committed) and `refused` (this step will not become a
checkpoint) end it, `failing` does not. Of copies: `peer` and `peer-failing`. `repaired`: memory had changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.checkpoint.commit.fence import Fence
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.format.tiles import ITEM_BYTES, GlobalTensor
from holdfast.checkpoint.snapshots.files import is_plain
from holdfast.plan.tiles import TensorShard

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker."""

    job: str
    generation: int
    worker: int
    world: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The daemon of another node."""

    node: str
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leader:
    """What the worker knows whose daemon commits."""

    writers: tuple[int, ...]
    """Workers that write a part."""
    tensors: Mapping[str, GlobalTensor]
    """Of the whole job."""
    mesh: Mapping[str, int]
    state: Mapping[str, Any]
    """Settings that must be equal in a run that goes on from a checkpoint."""
    retention: Retention


@dataclass(frozen=True, slots=True)
class Join:
    """What is to be done with the snapshots of one worker."""

    arena: str
    settings: str
    """Digest of what must be equal in a run that goes on, as in the arena's description."""
    secret: bytes
    """The job's own, by which its daemons know each other."""
    store: str | None = None
    fence: Fence | None = None
    shares: tuple[tuple[str, TensorShard], ...] = ()
    """What this worker writes of a checkpoint."""
    rate: float = 0.0
    """Bytes a second, to store and peer together; 0: any."""
    peer: Peer | None = None
    leader: Leader | None = None
    timeout_s: float = 30.0
    """How long a store behind a network is asked again before a failure counts."""
    down: str = ""
    """Why there is no store, where there should be one."""

    def encode(self) -> Json:
        """As JSON."""
        leader = self.leader and {
            "writers": list(self.leader.writers),
            "tensors": {name: [t.dtype, list(t.shape)] for name, t in self.leader.tensors.items()},
            "mesh": dict(self.leader.mesh),
            "state": dict(self.leader.state),
            "retention": asdict(self.leader.retention),
        }
        return {
            "arena": self.arena,
            "settings": self.settings,
            "secret": self.secret.hex(),
            "store": self.store,
            "fence": self.fence and asdict(self.fence),
            "shares": [[name, list(shard.offset), list(shard.size)] for name, shard in self.shares],
            "rate": self.rate,
            "peer": self.peer and {"node": self.peer.node, "address": list(self.peer.address)},
            "leader": leader,
            "timeout_s": self.timeout_s,
            "down": self.down,
        }


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot that is complete."""

    step: int
    slot: int
    seq: int
    persist: bool
    peer: bool


def hello_from(message: Mapping[str, Any]) -> WorkerHello:
    """Raises UsageError."""
    try:
        hello = WorkerHello(*(_of(message, key, kind) for key, kind in _HELLO))
    except (KeyError, TypeError) as error:
        raise UsageError(f"hello: {error}") from None
    if not is_plain(hello.job):
        raise UsageError(f"hello: {hello.job!r} is no name for a job")
    if not 0 <= hello.worker < hello.world:
        raise UsageError(f"hello: there is no worker {hello.worker} of {hello.world}")
    return hello


def join_from(message: Mapping[str, Any]) -> Join:
    """Raises UsageError."""
    try:
        join = Join(
            _of(message, "arena", str),
            _of(message, "settings", str),
            bytes.fromhex(message["secret"]),
            message.get("store") or None,
            Fence(**message["fence"]) if message.get("fence") else None,
            tuple((str(name), _shard(low, size)) for name, low, size in message.get("shares", ())),
            float(message.get("rate") or 0.0),
            _peer(message["peer"]) if message.get("peer") else None,
            _leader(message["leader"]) if message.get("leader") else None,
            float(message.get("timeout_s", 30.0)),
            str(message.get("down", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"join: {type(error).__name__}: {error}") from None
    if len(join.secret) < 16:
        raise UsageError("join: a secret has at least 16 bytes")
    if join.store and join.fence is None:
        raise UsageError("join: a store needs the claim on it")
    return join


def taken_from(message: Mapping[str, Any]) -> SnapshotTaken:
    """Raises UsageError."""
    try:
        return SnapshotTaken(*(_of(message, key, kind) for key, kind in _TAKEN))
    except (KeyError, TypeError) as error:
        raise UsageError(f"snapshot: {error}") from None


_HELLO = (("job", str), ("generation", int), ("worker", int), ("world", int))
_TAKEN = (("step", int), ("slot", int), ("seq", int), ("persist", bool), ("peer", bool))


def _of(message: Mapping[str, Any], key: str, kind: type) -> Any:
    value = message[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{key} is {value!r}")
    return value


def _shard(low: Sequence[int], size: Sequence[int]) -> TensorShard:
    return TensorShard(tuple(map(int, low)), tuple(map(int, size)))


def _peer(message: Mapping[str, Any]) -> Peer:
    host, port = message["address"]
    return Peer(str(message["node"]), (str(host), int(port)))


def _leader(message: Mapping[str, Any]) -> Leader:
    tensors = {}
    for name, (dtype, shape) in message["tensors"].items():
        if dtype not in ITEM_BYTES:
            raise ValueError(f"{name} is of type {dtype!r}")
        tensors[name] = GlobalTensor(name, tuple(map(int, shape)), dtype)
    return Leader(
        tuple(map(int, message["writers"])),
        tensors,
        {str(name): int(size) for name, size in message["mesh"].items()},
        dict(message["state"]),
        Retention(**message["retention"]),
    )
