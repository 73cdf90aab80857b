"""What a job's step is on a network as it is: how long its transfers take, what each NIC carries and counts. Pure.

Solved once for each change of the network. Rings of replicas go at one pace, so a slow edge slows all of its ring;
messages between stages are hidden as long as they fit beside computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.controller.simulation.fabric.conditions import Conditions, Flow
from holdfast.controller.simulation.fabric.congested import notifications_per_s, overloads, pauses_per_burst
from holdfast.controller.simulation.fabric.layout import BURSTS, NIC_BYTES_PER_S, Layout
from holdfast.planner.network.congestion import MTU
from holdfast.planner.network.flows import Floats, Ints, Transfers, ends, fair_rates
from holdfast.planner.network.network import Network
from holdfast.planner.network.retransmission import sent_per_delivered
from holdfast.planner.network.traffic import Edges, message_edges, ring_edges

ROUND_TRIP_S = 8e-6
WINDOW = NIC_BYTES_PER_S * ROUND_TRIP_S / MTU
"""Packets under way."""
HIDDEN = 0.5
"""Share of a step beside which messages may go before they make it longer."""
_LONG_S = 1e4
"""What others send goes on for longer than any step."""

COUNTERS = (
    "np_cnp_sent", "rp_cnp_handled", "rx_pause", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
    "symbol_error", "link_downed",
)  # fmt: skip
"""Of a port, as agents report them."""


@dataclass(frozen=True)
class Solved:
    """Arrays hold a number for each NIC. Bytes are of a step, both ways of the row: sent, received."""

    sums_s: Floats
    messages_s: Floats
    """Of all messages of a step, were they one behind the other."""
    sums: Floats
    """Shape (2, NICs): bytes of rings, with what is sent again."""
    messages: Floats
    others_calm: Floats
    """Shape (2, NICs): bytes/s of others beside computation ..."""
    others_busy: Floats
    """... and beside the rings."""
    counted: Mapping[str, Floats]
    """By counter, how much it grows in a step."""
    cut_off: NDArray[np.bool_]
    """NICs whose transfers cannot end."""

    @cached_property
    def longest_sums_s(self) -> float:
        return float(self.sums_s[np.isfinite(self.sums_s)].max(initial=0.0))

    @cached_property
    def kinds(self) -> tuple[tuple[Floats, Ints], tuple[Floats, Ints]]:
        """For what is sent and for what is received: rows of seconds and bytes of rings, seconds and bytes of messages,
        and which of the rows each NIC has. A symmetric step has few."""
        sent, received = (
            np.unique(
                # What differs by rounding is one kind.
                np.stack([self.sums_s, self.sums[way], self.messages_s, self.messages[way]], axis=1).astype("f4"),
                axis=0,
                return_inverse=True,
            )
            for way in (0, 1)
        )
        return (sent[0].astype(float), sent[1].ravel()), (received[0].astype(float), received[1].ravel())

    def exposed_s(self, calm_s: float) -> float:
        """Seconds of a step that nothing hides, without what cannot end."""
        messages = float(self.messages_s[np.isfinite(self.messages_s)].max(initial=0.0))
        return self.longest_sums_s + max(0.0, messages - HIDDEN * calm_s)


def solve(layout: Layout, conditions: Conditions) -> Solved:
    """Rings and messages at different times, as in 1F1B; what others send goes on beside both."""
    network = Network(layout.clos, conditions.lost, conditions.seed)
    capacity, lossy = network.capacity(), np.zeros(layout.clos.link_count)
    for link, share in conditions.slower:
        capacity[link] *= share
    for link, share in conditions.lossy:
        lossy[link] = share
    place, traffic = layout.place(), layout.traffic
    phases = [
        _Phase(network, ring_edges(traffic, place), traffic.sums, conditions.others, capacity, lossy),
        _Phase(network, message_edges(place), traffic.messages, conditions.others, capacity, lossy),
        _Phase(network, _nobody(), 0.0, conditions.others, capacity, lossy),
    ]
    rings, between, alone = phases
    nics = layout.clos.nics
    rest_s = max(0.0, layout.calm_s - float(rings.took[np.isfinite(rings.took)].max(initial=0.0)))
    counted = {name: np.zeros(nics) for name in COUNTERS}
    rings.count(counted, bursts=1, others_s=0.0)
    between.count(counted, bursts=BURSTS, others_s=0.0)
    alone.count(counted, bursts=1, others_s=rest_s)
    return Solved(
        rings.seconds(nics), between.seconds(nics), rings.bytes(nics), between.bytes(nics), alone.others(nics),
        rings.others(nics), counted, np.isinf(rings.seconds(nics)) | np.isinf(between.seconds(nics)),
    )  # fmt: skip


def _nobody() -> Edges:
    none = np.empty(0, dtype=np.int64)
    return none, none, none


class _Phase:
    """Transfers that go at the same time: the job's, and behind them those of others, each with a link of its own that
    is as fast as it would send."""

    def __init__(
        self, network: Network, edges: Edges, size: float, others: tuple[Flow, ...], capacity: Floats, lossy: Floats
    ) -> None:
        """`size`: bytes of each of the job's transfers."""
        source, target, owner = edges
        rails = network.clos.rails
        apart = source // rails != target // rails
        number = int(owner.max(initial=-1)) + 1
        self.own = int(apart.sum())
        self.source = np.concatenate([source[apart], np.array([one.source for one in others], dtype=np.int64)])
        self.target = np.concatenate([target[apart], np.array([one.target for one in others], dtype=np.int64)])
        self.owner = np.concatenate([owner[apart], number + np.arange(len(others))])
        self.size = np.concatenate([np.full(number, size), [one.bytes_per_s * _LONG_S for one in others]])
        self.paths = network.paths(self.source, self.target)
        self.loss = 1.0 - np.prod(np.where(self.paths >= 0, 1.0 - lossy[self.paths], 1.0), axis=1)
        self.part = np.array([sent_per_delivered(float(one), WINDOW) for one in self.loss])
        asked = np.array([one.bytes_per_s for one in others], dtype=float)
        self.capacity = np.concatenate([capacity, asked])
        self.broken = lossy
        own_links = np.full((len(self.source), 1), -1, dtype=np.int64)
        own_links[self.own :, 0] = len(capacity) + np.arange(len(others))
        paths = np.concatenate([self.paths, own_links], axis=1)
        there = paths >= 0
        times = there.sum(axis=1)
        transfers = Transfers(np.repeat(self.owner, times), paths[there], np.repeat(self.part, times), self.size)
        self.took = ends(transfers, self.capacity)[:number]
        rate = fair_rates(transfers, self.capacity)
        self.rate = np.where(np.isfinite(rate), rate, 0.0)[self.owner]
        self.most = np.concatenate([capacity[self.source[: self.own]], asked])
        self.number = number

    def seconds(self, nics: int) -> Floats:
        """That the transfers of each NIC take, the longest of them."""
        found = np.zeros(nics)
        took = self.took[self.owner[: self.own]]
        np.maximum.at(found, self.source[: self.own], took)
        np.maximum.at(found, self.target[: self.own], took)
        return found

    def bytes(self, nics: int) -> Floats:
        """Sent and received by each NIC for the job."""
        sent = (self.size[self.owner] * self.part)[: self.own]
        got = sent * (1.0 - self.loss[: self.own])
        return np.stack([
            np.bincount(self.source[: self.own], sent, nics), np.bincount(self.target[: self.own], got, nics)
        ])  # fmt: skip

    def others(self, nics: int) -> Floats:
        """Bytes/s for others."""
        rate = (self.rate * self.part)[self.own :]
        return np.stack([
            np.bincount(self.source[self.own :], rate, nics), np.bincount(self.target[self.own :], rate, nics)
        ])  # fmt: skip

    def count(self, counted: Mapping[str, Floats], bursts: int, others_s: float) -> None:
        """Add what NICs count: of the job's transfers over their seconds, of others' over `others_s`."""
        times = overloads(self.paths, self.part, self.rate, self.most, self.capacity)
        took = np.full(len(self.owner), others_s)
        took[: self.own] = self.took[self.owner[: self.own]]
        took[~np.isfinite(took)] = 0.0
        notified = notifications_per_s(times) * took
        np.add.at(counted["np_cnp_sent"], self.target, notified)
        np.add.at(counted["rp_cnp_handled"], self.source, notified)
        np.add.at(counted["rx_pause"], self.source, pauses_per_burst(self.paths, times) * bursts * (took > 0))
        packets = self.rate * self.part * took / MTU
        broken = packets * self.loss
        np.add.at(counted["out_of_sequence"], self.target, broken)
        np.add.at(counted["packet_seq_err"], self.source, broken)
        # A port sees bit errors of what comes in; the other end of the cable is a switch.
        last: Ints = self.paths[:, 5]
        np.add.at(counted["symbol_error"], self.target, packets * np.where(last >= 0, self.broken[last], 0.0))
