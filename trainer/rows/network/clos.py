"""CLOS, ECMP and congestion control in the simulated network, against closed forms. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

UPLINKS, DRAWS = 32, 100_000


def clos() -> Iterator[Row]:
    """k^3/4 ports in three tiers with 5 k^2/4 switches, each port split in two (MegaScale, 3.6); rings stay below."""
    from holdfast.planner.network.clos import Clos
    from holdfast.planner.network.network import Network
    from holdfast.planner.network.traffic import StepTraffic, edges_above, places, sums

    k = 64
    full = Clos(k**3 // 4 * 2, ports=k)
    yield Row("NICs that switches of 64 ports connect", k**3 / 4 * 2, full.most_nics)
    yield Row("switches of a full network", 5 * k**2 / 4, sum(full.switches))
    up = full.leaves * full.uplinks * full.uplink_bytes_per_s
    yield Row("bytes/s up over those from below, lowest tier", 1, up / (full.nics * full.nic_bytes_per_s))
    yield Row("GPUs of a set of servers", k / 2 * 2 * 8, full.below_a_leaf * full.rails)
    for pp, dp, tp in ((8, 64, 8), (8, 192, 8), (4, 256, 8)):
        job = StepTraffic(pp, dp, tp, 1.0, 0.0)
        network = Clos(job.world)
        place = places(job)
        # A ring of d servers in a row, 64 in a set: as many edges leave sets as it touches, if more than one.
        crossings = 0
        for ring in range(pp):
            touched = {(ring * dp + server) // 64 for server in range(dp)}
            crossings += len(touched) if len(touched) > 1 else 0
        measured = edges_above(network, place)[0]
        yield Row(f"edges of rings above the lowest switches, pp {pp}, dp {dp}, tp {tp}", crossings * tp, measured)
        crossing = sums(job, place, Network(network)).crossing
        tiers = sum(1 for link in crossing.tolist() if network.tier_of(link) == 1)
        yield Row(f"links they take there, pp {pp}, dp {dp}, tp {tp}", 2 * crossings * tp, tiers)


def ecmp() -> Iterator[Row]:
    """By 100,000 draws, within three standard deviations of the formulas."""
    from holdfast.planner.network.ecmp import counted

    for flows in (4, 8, 16):
        none = math.prod(1 - i / UPLINKS for i in range(flows))
        pairs = sum(
            math.comb(flows, 2 * j)
            * math.factorial(2 * j)
            // (2**j * math.factorial(j))
            * math.perm(UPLINKS, flows - j)
            for j in range(flows // 2 + 1)
        )
        drawn = counted(flows, UPLINKS, DRAWS, seed=1)
        for what, expected, measured in (("none", none, drawn[0]), ("at most two", pairs / UPLINKS**flows, drawn[1])):
            spread = 3 * math.sqrt(expected * (1 - expected) / DRAWS)
            yield Row(
                f"chance that {what} of {flows} flows meet on one of {UPLINKS} uplinks", expected, measured, spread
            )


def congestion() -> Iterator[Row]:
    """32 senders into one port: what the paper names and does not publish is ours, so the figures are goals."""
    from holdfast.planner.network.congestion import Dcqcn, Hybrid
    from holdfast.planner.network.incast import Port, incast

    port = Port(mark_from=100e3, mark_all=400e3)
    both = incast(Hybrid, port, 32, 0.01, 1)
    notified = incast(lambda flows, line, _: Dcqcn(flows, line), port, 32, 0.01, 1)
    yield Row("share of the port's bandwidth, both laws", 1, both.goodput, 0.05)
    yield Row("fairness (Jain), both laws", 1, both.fairness, 0.05)
    yield Row("bytes of queue above Kmax, both laws", 0, max(0.0, both.longest_queue - port.mark_all))
    yield Row("fewer pauses than DCQCN alone (1: yes)", 1, both.pauses < notified.pauses)
    yield from _packets()


def _packets() -> Iterator[Row]:
    """The same packet by packet, 4,178 bytes each, in slots of one packet at 200 Gbit/s; a hop takes 12 of them."""
    from dataclasses import replace

    from holdfast.planner.packets.incast import CONTROLS, incasts
    from holdfast.planner.packets.rack import ENDLESS, RACK_PORT, Flows, Rack
    from holdfast.planner.packets.simulation import Simulation

    wire, hop, senders = 4096 + 82, 12, 32
    alone = Simulation(Rack(2), Flows.of((0, 1, ENDLESS)), CONTROLS["none"])
    alone.run(1000)
    yield Row("packets of one flow in 1,000 slots", 1000 - 2 * hop, int(alone.receivers.expected[0]))
    # All cross XOFF with packet X + 1 or the next. Packets of 2 hops come before a pause works; one leaves a slot.
    xoff = int(RACK_PORT.pause_at // wire)
    flood = Rack(senders + 1)
    flood = replace(flood, buffer=flood.lossless_bytes)
    flooded = Simulation(flood, Flows.of(*[(i, senders, ENDLESS) for i in range(senders)]), CONTROLS["none"])
    flooded.run(3 * hop + xoff + 5)
    peak = int(flooded.switch.longest[senders])
    yield Row("packets in the queue of 32 senders that are paused, at most", senders * (xoff + 2 * hop) - 2 * hop, peak)
    yield Row("packets of them that are dropped", 0, flooded.switch.dropped)
    found = {name: meeting.outcome for name, meeting in incasts(senders, 16_000, seed=1).items()}
    both = found["both"]
    yield Row("share of what packets leave for payload, packet level, both laws", 1, both.goodput, 0.05)
    yield Row("fairness (Jain), packet level, both laws", 1, both.fairness, 0.05)
    over = max(0.0, both.longest_queue - RACK_PORT.mark_all)
    yield Row("bytes of queue above Kmax, packet level, both laws", 0, over)
    fewest = both.pauses < found["dcqcn"].pauses and both.pauses <= found["swift"].pauses
    yield Row("fewer pauses than DCQCN, no more than Swift, packet level (1: yes)", 1, fewest)
