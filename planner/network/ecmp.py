"""Equal-cost multi-path: how often flows meet on one uplink (MegaScale, section 3.6).

A switch takes the uplink that the hash of a connection names. With uplinks as fast as NICs, two flows on one are a
conflict; with uplinks of twice the speed, three are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BATCH = 4_000_000
"""Numbers drawn at a time, which bounds the memory."""


def chance_of_none_shared(flows: int, uplinks: int) -> float:
    """That no two of `flows` take the same of `uplinks`: prod over i < n of (1 - i/m)."""
    return float(math.prod(1 - i / uplinks for i in range(flows)))


def chance_of_two_at_most(flows: int, uplinks: int) -> float:
    """That no three take the same: sum over j pairs of n! m! / (j! (n - 2j)! (m - n + j)! 2^j m^n)."""
    n, m = flows, uplinks
    ways = sum(
        math.factorial(n)
        * math.factorial(m)
        // (math.factorial(j) * math.factorial(n - 2 * j) * math.factorial(m - n + j) * 2**j)
        for j in range(n // 2 + 1)
        if m - n + j >= 0
    )
    return float(ways / m**n)


def counted(flows: int, uplinks: int, draws: int, seed: int) -> tuple[float, float]:
    """Shares of `draws` in which no uplink had two flows, and none had three: by drawing uplinks as hashes do."""
    rng = np.random.default_rng(seed)
    none = two = 0
    left = draws
    while left:
        batch = min(left, max(1, _BATCH // max(flows, uplinks)))
        most = _most_on_one(rng.integers(uplinks, size=(batch, flows)), uplinks)
        none += int((most <= 1).sum())
        two += int((most <= 2).sum())
        left -= batch
    return none / draws, two / draws


def _most_on_one(taken: NDArray[np.int64], uplinks: int) -> NDArray[np.int64]:
    rows = np.arange(len(taken))[:, None] * uplinks
    counts = np.bincount((taken + rows).ravel(), minlength=len(taken) * uplinks)
    most: NDArray[np.int64] = counts.reshape(len(taken), uplinks).max(axis=1)
    return most


def hashes(source: NDArray[np.int64], target: NDArray[np.int64], seed: int, pair: int = 0) -> NDArray[np.uint64]:
    """A number for each connection, as a switch's hash of its five-tuple: equal ends, seed and pair give the same.

    `pair`: which of several connections between the same ends (NCCL_IB_QPS_PER_CONNECTION). splitmix64's mixer.
    """
    mixed = source.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (target.astype(np.uint64) + np.uint64((seed * 1_000_003 + pair * 7919) % 2**63)) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
