"""How long InfiniBand goes on sending over a link that is silent, when it goes on after a flap (MegaScale, 6.3), and
what a link that loses packets still carries."""

from __future__ import annotations

import math
from itertools import count

IB_TICK_S = 4.096e-6
"""InfiniBand's unit: Local ACK Timeout is this times 2 to the power of a 5-bit exponent (InfiniBand Architecture
Specification, volume 1, 9.7.6.1.3). A QP takes it from NCCL_IB_TIMEOUT, how often it retries from
NCCL_IB_RETRY_CNT (3 bits); NCCL's own manual gives the same formula."""


def timeout_s(exponent: int) -> float:
    """Seconds that one attempt waits for its acknowledgement, at least: an adapter may take four times as long."""
    return float(IB_TICK_S * 2.0**exponent)


DOUBLINGS = 6
"""Adaptive retransmission (ROCE_ACCL roce_adp_retrans_en of mlx5) starts 2^6 times below the full timeout."""


def pause_s(exponent: int, attempt: int, adaptive: bool = False) -> float:
    """Seconds before attempt `attempt`, from 0, to send a packet again: the timeout; adaptively, doubled up to it."""
    return timeout_s(exponent) / 2 ** max(0, DOUBLINGS - attempt) if adaptive else timeout_s(exponent)


def ib_tolerance_s(exponent: int, retries: int) -> float:
    """Seconds of silence that a send survives: one timeout for each retry, of which there is at least one.

    On the safe side: the specification lets an adapter take up to four times as long for each.
    """
    return timeout_s(exponent) * max(retries, 1)


def goes_on_after(flap_s: float, exponent: int, retries: int, adaptive: bool = False) -> float | None:
    """Seconds from a link's loss to the packet that gets through, None where the connection is given up before.

    A lost packet is sent again at each timeout, so the first one after the link's return is the one that counts.
    `adaptive`: pauses as `pause_s` has them.
    """
    if flap_s <= 0:
        return 0.0
    if flap_s >= ib_tolerance_s(exponent, retries):
        return None
    if not adaptive:
        wait = timeout_s(exponent)
        return math.ceil(flap_s / wait) * wait
    sent = 0.0
    for attempt in count():
        sent += pause_s(exponent, attempt, adaptive)
        if sent >= flap_s:
            break
    return sent


def sent_per_delivered(lost: float, window: float) -> float:
    """Packets sent for each one that is delivered, where a loss costs all that is under way: go-back-N, as RoCE has it.

    1 + W p / (1 - p), of which the inverse is the efficiency (1 - p) / (1 - p + W p) (Bertsekas and Gallager, Data
    Networks, 2.4.2). `lost`: share of packets, below 1; `window`: packets of a round trip, 1 or more. ValueError for
    others.
    """
    if not 0 <= lost < 1 or window < 1:
        raise ValueError(f"a loss of {lost:g} and a window of {window:g} packets: 0 to below 1, and 1 or more")
    return 1.0 + window * lost / (1.0 - lost)
