"""A rack and what its hosts send: sizes in packets and slots, checked. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.planner.network.congestion import MTU
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.incast import Port
from holdfast.planner.network.retransmission import DOUBLINGS, pause_s

Ints = NDArray[np.int64]

HEADERS = 82.0
"""Bytes of a packet on the wire beside its payload (RoCEv2): preamble and gap 20, Ethernet 18, IPv4 20, UDP 8,
InfiniBand 16 with its checksum."""
WIRE = MTU + HEADERS

MAX_HOSTS = 1024
MAX_PLACES = 1 << 23
"""Places for packets in all queues: 32 bytes each, 256 MiB in all."""
MAX_HOP = 10_000
ENDLESS = 1 << 40
"""Packets of a flow that never ends."""

RACK_PORT = Port(mark_from=100e3, mark_all=400e3)


@dataclass(frozen=True, slots=True)
class Rack:
    """Hosts with a NIC each at one switch, and links from it to a spine. Raises NetworkError for what can't be.

    Ports 0 to hosts - 1 are of hosts, those after them are uplinks. An uplink is as fast as `uplink_speed` NICs. What
    is beyond it has no queue and pauses nobody. `port` gives bandwidth, empty round trip, marks and the pause
    threshold; `port.pause_at` and `resume_at` are XOFF and XON of one ingress, in bytes.
    """

    hosts: int
    port: Port = RACK_PORT
    uplinks: int = 0
    uplink_speed: int = 2
    buffer: float = 32e6
    """Bytes that all queues share. What arrives at a full buffer is dropped."""
    resume_at: float | None = None
    """None: half of `port.pause_at`."""
    pfc: bool = True
    """False: nobody is paused."""
    window: int = 256
    """Packets of a flow that a NIC sends without an acknowledgement."""
    ib_timeout: int = 14
    ib_retries: int = 7
    adaptive: bool = False
    """Adaptive retransmission, see `retransmission.pause_s`."""

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise NetworkError(f"rack of {self.hosts:,} hosts: 1 to {MAX_HOSTS:,} are possible")
        if not (0 <= self.uplinks <= MAX_HOSTS and 1 <= self.uplink_speed <= 16):
            raise NetworkError(
                f"{self.uplinks:,} uplinks as fast as {self.uplink_speed} NICs: 0 to {MAX_HOSTS:,} of 1 to 16 are "
                "possible"
            )
        if not (self.slot_s > 0 and self.port.base_s / 4 / self.slot_s <= MAX_HOP):
            raise NetworkError(
                f"an empty round trip of {self.port.base_s:g} s at {self.port.bytes_per_s:g} bytes/s: "
                f"{4 * MAX_HOP:,} packets are the most that may be on the way"
            )
        if not 0 <= self.xon <= self.port.pause_at:
            raise NetworkError(
                f"a port pauses above {self.port.pause_at:g} bytes and resumes at {self.xon:g}: "
                "the second must be from 0 to the first"
            )
        if not (math.isfinite(self.buffer) and self.buffer >= WIRE):
            raise NetworkError(f"a buffer of {self.buffer:g} bytes holds no packet of {WIRE:g}: give one or more")
        if self.ports * self.buffer_packets > MAX_PLACES:
            raise NetworkError(
                f"{self.ports:,} ports and a buffer of {self.buffer:g} bytes: "
                f"{MAX_PLACES * WIRE / self.ports:.3g} bytes are the most for so many ports"
            )
        if self.window < 1:
            raise NetworkError(f"a window of {self.window} packets sends nothing: 1 or more are needed")
        if self.ib_timeout not in range(1, 32) or self.ib_retries not in range(8):
            raise NetworkError(
                f"timeout {self.ib_timeout} and {self.ib_retries} retries: NCCL_IB_TIMEOUT is 1 to 31, "
                "NCCL_IB_RETRY_CNT 0 to 7"
            )

    @property
    def xon(self) -> float:
        return self.port.pause_at / 2 if self.resume_at is None else self.resume_at

    @property
    def ports(self) -> int:
        return self.hosts + self.uplinks

    @property
    def speed(self) -> Ints:
        """Packets that each port moves in a slot, in each direction."""
        return np.repeat(np.array([1, self.uplink_speed], dtype=np.int64), [self.hosts, self.uplinks])

    @property
    def slot_s(self) -> float:
        return WIRE / self.port.bytes_per_s

    @property
    def hop(self) -> int:
        """Slots between a NIC and the switch: a quarter of the empty round trip, which is 4 of them."""
        return max(1, round(self.port.base_s / 4 / self.slot_s))

    @property
    def buffer_packets(self) -> int:
        return int(self.buffer // WIRE)

    @property
    def lossless_bytes(self) -> float:
        """A buffer that never overflows where NICs are paused: of each port XOFF and what it sends in 2 hops, one until
        the pause reaches it and one for what is on the way then."""
        each = self.port.pause_at // WIRE + 2 * self.hop * self.speed
        return float(each.sum() * WIRE)

    @property
    def waits(self) -> Ints:
        """Slots from one attempt to send a packet to the next one, by attempt; the last stands for all after it."""
        pauses = [pause_s(self.ib_timeout, attempt, self.adaptive) for attempt in range(DOUBLINGS + 1)]
        return np.array([math.ceil(pause / self.slot_s) for pause in pauses], dtype=np.int64)


@dataclass(frozen=True)
class Flows:
    """Flow i sends `packets[i]` packets from port `source[i]` to `target[i]`, from slot `begin[i]` on."""

    source: Ints
    target: Ints
    packets: Ints
    begin: Ints

    @classmethod
    def of(cls, *flows: tuple[int, int, int] | tuple[int, int, int, int]) -> Flows:
        """From (source, target, packets) or (source, target, packets, begin)."""
        rows = np.array([(*flow, 0)[:4] for flow in flows], dtype=np.int64).reshape(-1, 4)
        return cls(*rows.T.copy())

    def __len__(self) -> int:
        return len(self.source)

    def check(self, rack: Rack) -> None:
        """Raises NetworkError where the rack can't carry them."""
        if not len(self):
            raise NetworkError("no flows: give one or more")
        for flow, (source, target, packets, begin) in enumerate(
            zip(*(part.tolist() for part in (self.source, self.target, self.packets, self.begin)), strict=True)
        ):
            if not (0 <= source < rack.ports and 0 <= target < rack.ports):
                raise NetworkError(f"flow {flow} from port {source} to {target}: there are 0 to {rack.ports - 1}")
            if source == target:
                raise NetworkError(f"flow {flow} from port {source} to itself: it needs two ports")
            if not 1 <= packets <= ENDLESS or begin < 0:
                raise NetworkError(
                    f"flow {flow} of {packets} packets from slot {begin} on: 1 packet, slot 0 are the least"
                )


@dataclass(frozen=True, slots=True)
class Flap:
    """A port's link is silent, in both directions, from slot `begin` to before slot `end`. Both ends go on sending."""

    port: int
    begin: int
    end: int

    def check(self, rack: Rack) -> None:
        if not (0 <= self.port < rack.ports and 0 <= self.begin < self.end):
            raise NetworkError(
                f"port {self.port} silent from slot {self.begin} to {self.end}: there are ports 0 to {rack.ports - 1}, "
                "and the end comes after the beginning"
            )
