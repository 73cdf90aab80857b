"""Timeouts of the network's layers: how long InfiniBand goes on sending, and which orders are refused. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

FLAP_S = 3.0
TICK_S = 4.096e-6
"""InfiniBand Architecture Specification, volume 1, 9.7.6.1.3."""


def timeouts() -> Iterator[Row]:
    from holdfast.planner.network.retransmission import ib_tolerance_s
    from holdfast.trainer.settings.transport import Transport, obstacle

    for exponent, seconds in ((14, 0.47), (18, 7.5), (20, 30.1), (22, 120.3)):
        expected = 7 * TICK_S * 2**exponent
        assert abs(expected - seconds) < 0.05 * seconds
        yield Row(f"seconds of silence survived, NCCL_IB_TIMEOUT {exponent}", expected, ib_tolerance_s(exponent, 7))
    # A flap of 3 s: refused with 0.5 s, taken with 7.5 s; and each layer before the one that gives up on it.
    cases = (
        ("a flap of 3 s, 0.5 s of retries", Transport(FLAP_S, 14, 7, 300.0, 0.0), True),
        ("a flap of 3 s, 7.5 s of retries", Transport(FLAP_S, 18, 7, 300.0, 0.0), False),
        ("a group that gives up before the retries end", Transport(FLAP_S, 20, 7, 20.0, 0.0), True),
        ("a driver that gives up before the group", Transport(FLAP_S, 18, 7, 300.0, 200.0), True),
        ("all in order", Transport(FLAP_S, 18, 7, 300.0, 600.0), False),
    )
    for what, policy, is_refused in cases:
        yield Row(f"refused (1) or not (0): {what}", is_refused, obstacle(policy, infiniband=True) is not None)
    yield from _packets()


def _packets() -> Iterator[Row]:
    """A link is silent from slot 500 on, packet by packet. The timer starts with the last answer, a hop later. Packets
    of three hops had arrived without one and are sent again."""
    from holdfast.planner.packets.incast import CONTROLS
    from holdfast.planner.packets.rack import Flap, Flows, Rack
    from holdfast.planner.packets.simulation import Simulation

    hop, at, exponent, slot_s = 12, 500, 5, (4096 + 82) / 25e9
    wait, last = math.ceil(TICK_S * 2**exponent / slot_s), at - 1 + hop
    for slots in (700, 3300):
        rack = Rack(2, window=5 * hop, ib_timeout=exponent)
        flapped = Simulation(rack, Flows.of((0, 1, at + 1)), CONTROLS["none"], flaps=[Flap(0, at, at + slots)])
        flapped.run(10_000)
        expected = last + math.ceil((at + slots - last) / wait) * wait + 5 * hop
        done = int(flapped.receivers.done[0])
        yield Row(f"slot of the first new packet behind a flap of {slots:,} slots", expected, done)
