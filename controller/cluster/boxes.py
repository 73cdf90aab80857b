"""Who sits where in a job, and what leaves each place in a step: the nodes as boxes, or switches or pods of many. Pure.

As the picture of `holdfast plan --draw`, of nodes as they are now.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.controller.state.model import Job, Node
from holdfast.planner.cluster.identity import pod_of
from holdfast.planner.placement.expected import NodeBytes

MOST = 128
"""Boxes in a picture."""
Measured = Callable[[str], tuple[float, float] | None]


def layout_doc(job: Job, known: Mapping[str, Node], planned: NodeBytes, measured: Measured) -> dict[str, Any]:
    """`planned`: of as many nodes as the job has, by their order. `measured`: bytes that a node sends and receives."""
    kind, keys = _division([known.get(name) for name in job.nodes], job.nodes)
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    of = np.array([number[key] for key in keys], dtype=np.int64)
    leaves = of[planned.one] != of[planned.other]
    one, other, amount = planned.one[leaves], planned.other[leaves], planned.amount[leaves]
    sent, received = (np.bincount(of[ends], amount, len(number)).tolist() for ends in (one, other))
    ends = np.cumsum(planned.sizes or (job.world,))
    found = []
    for key, i in number.items():
        places = np.flatnonzero(of == i).tolist()
        ranks = [rank for place in places for rank in job.ranks_on(job.nodes[place])]
        counts = np.unique(np.searchsorted(ends, ranks, side="right"), return_counts=True)
        counted = measured(job.nodes[places[0]]) if kind == "node" else None
        found.append(
            {
                "name": key[-1],
                "inside": " ".join(filter(None, key[:-1])),
                "nodes": len(places),
                "ranks": _ranges(ranks),
                "stages": [[int(p), int(n) / len(ranks)] for p, n in zip(*counts, strict=True)],
                "sent": sent[i],
                "received": received[i],
                "sent_measured": None if counted is None else counted[0],
                "received_measured": None if counted is None else counted[1],
            }
        )
    found.sort(key=lambda box: str(box["inside"]))  # stable: of one switch in the order of ranks
    return {"job": job.spec.id, "generation": job.generation, "kind": kind, "pp": planned.pp, "boxes": found}


def _division(nodes: Sequence[Node | None], names: Sequence[str]) -> tuple[str, list[tuple[str, ...]]]:
    """What is one box; and by node what it lies in, the nearest last."""
    places = [("", "") if node is None else (pod_of(node.identity), node.identity.switch) for node in nodes]
    by_kind: dict[str, list[tuple[str, ...]]] = {
        "node": [(switch, name) for (_, switch), name in zip(places, names, strict=True)],
        "switch": [(pod, switch or "no switch") for pod, switch in places],
        "pod": [(pod or "no pod",) for pod, _ in places],
    }
    for kind, keys in by_kind.items():
        if len(set(keys)) <= MOST and (kind == "node" or len(set(keys)) > 1):
            return kind, keys
    size = -(-len(names) // MOST)
    return "nodes", [(f"{names[i // size * size]} ...",) for i in range(len(names))]


def _ranges(ranks: Sequence[int]) -> list[list[int]]:
    """First and last of each run of numbers."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found
