"""Which ways between nodes and between switches are slow, by the newest diagnosis that tested both ends. Pure."""

from collections.abc import Iterable
from typing import Any

from holdfast.planner.placement.sites import Pair, SlowLinks


def slow_links(docs: Iterable[dict[str, Any]]) -> SlowLinks:
    """`docs`: ended diagnoses with their verdicts, oldest first. A later one of both nodes that finds nothing clears a
    link; of switches, one that found no way of theirs slow, with nodes of the former one among its own."""
    nodes: set[Pair] = set()
    switches: dict[Pair, frozenset[str]] = {}
    for doc in docs:
        tested = frozenset(doc.get("nodes", ()))
        if _has_pairs(doc):
            nodes = {pair for pair in nodes if not tested.issuperset(pair)}
            switches = {pair: ends for pair, ends in switches.items() if not tested >= ends}
        for verdict in doc.get("verdicts", ()):
            path = (verdict.get("evidence") or {}).get("path")
            if not isinstance(path, list | tuple) or len(path) != 2:
                continue
            pair = (str(path[0]), str(path[1]))
            if (verdict.get("evidence") or {}).get("of") == "switches":
                switches[pair] = tested
            else:
                nodes.add(pair)
    return SlowLinks(frozenset(nodes), frozenset(switches))


def _has_pairs(doc: dict[str, Any]) -> bool:
    """Did it test pairs? Its verdicts of pairs then name their partners, or passed."""
    return any(
        verdict.get("check") == "pair" and verdict.get("grade") != "unable" for verdict in doc.get("verdicts", ())
    )
