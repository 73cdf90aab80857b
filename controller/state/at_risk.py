"""What a fault would cost right now: seconds of work since the state that training would go on from. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AtRisk:
    """Seconds of work; None where nothing is known of a state to go on from."""

    worker: float | None
    """When a worker dies: what is newer than the oldest of the newest snapshots."""
    node: float | None
    """When a node dies with its memory: what is newer than the copies on other nodes."""
    job: float | None
    """When all of it dies: what is newer than the checkpoint in the store."""


def at_risk(hosts: Sequence[tuple[Mapping[str, float], float]], step_seconds: float | None) -> AtRisk:
    """`hosts`: of each node of the job its gauges, and how many seconds ago they came."""
    checkpoint = min(_ages(hosts, "checkpoint_age_seconds"), default=None)
    snapshots = _ages(hosts, "snapshot_age_seconds")
    worker = max(snapshots) if hosts and len(snapshots) == len(hosts) else None
    node = None
    if worker is not None and step_seconds is not None:
        behind = [
            host["snapshot_step"] - host["snapshot_peer_step"] for host, _ in hosts if "snapshot_peer_step" in host
        ]
        if len(behind) == len(hosts):
            node = worker + max(0.0, *behind) * step_seconds
    return AtRisk(_least(worker, node, checkpoint), _least(node, checkpoint), checkpoint)


def _ages(hosts: Sequence[tuple[Mapping[str, float], float]], name: str) -> list[float]:
    return [host[name] + since for host, since in hosts if name in host]


def _least(*ages: float | None) -> float | None:
    known = [age for age in ages if age is not None and math.isfinite(age)]
    return min(known, default=None)
