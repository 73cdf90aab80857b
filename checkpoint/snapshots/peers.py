"""Which node keeps a copy of which node's snapshots. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def choose_peers(switches: Mapping[str, str]) -> dict[str, str]:
    """For each node the one that keeps its copies, given the switch of each; empty for a single node.

    Each node keeps copies for exactly one other. Nodes of one switch, which can fail together, keep for each other only
    where the largest switch has more than half of all nodes. The same for the same nodes, in whatever order they come.
    """
    nodes = sorted(switches, key=lambda node: (switches[node], node))
    if len(nodes) < 2:
        return {}
    # Nodes of a switch are adjacent here: a shift by the longest run leaves every one of them behind.
    shift = max(Counter(switches.values()).values()) % len(nodes) or 1
    return {node: nodes[(at + shift) % len(nodes)] for at, node in enumerate(nodes)}
