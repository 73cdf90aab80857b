"""Blame in one line."""

from __future__ import annotations

import dataclasses

from holdfast.diagnostics.blame.account_text import Entries
from holdfast.diagnostics.blame.model import Culprit
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.shape import OTHER


def work(role: str) -> str:
    """ "forward 1" in words."""
    kind, _, stage = role.partition(" ")
    return f"{kind} of stage {stage}" if stage else kind


def place(rank: int, shape: JobShape) -> str:
    node = shape.node_of(rank)
    return f"rank {rank} (node {node}, GPU {rank % max(shape.nproc, 1)})" if node else f"rank {rank}"


def seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def reported(culprit: Culprit, entries: Entries, place: int, shape: JobShape) -> Culprit:
    """The same with its figure in the account of the step, and with its line. `place`: among the culprits."""
    cost = entries.cost(place)
    return dataclasses.replace(
        culprit, cost=cost, text=_line(culprit, f"{cost} of {entries.step} {entries.unit}", shape)
    )


def _line(c: Culprit, share: str, shape: JobShape) -> str:
    what = _part(c)
    slower = f"{(c.ratio - 1) * 100:.0f}% slower than its {_peers(c.peers)}"
    if not c.ratio < 3:
        slower = f"{c.ratio:.3g} times what its {_peers(c.peers)} take"
    cost = f"cost the job {share} per step"
    waited = f", {c.victims} other rank{'s' if c.victims != 1 else ''} waited"
    if c.every:
        doing = {"waiting": ", asleep, at a lock or in a read", "compute": ", computing"}.get(c.kind.value, "")
        more = f"{seconds(c.burst_s)} more than its {_peers(c.peers)} in one of {c.every:.2g} steps"
        return f"{place(c.rank, shape)}: {more}{doing}, in {what}; {cost}{waited}"
    match c.kind.value:
        case "imbalance":
            more = f"{(c.ratio - 1) * 100:.0f}% more work than the mean"
            return f"the plan: {c.what} has {more}; no rank's fault; {cost.replace('cost the job', 'costs the job')}"
        case "link":
            both = f"link between {place(c.rank, shape)} and {place(c.peer, shape)}"
            ends = both if c.peer >= 0 else f"links of {place(c.rank, shape)}"
            return f"{ends}: {c.what} {slower}; {cost}{waited}"
        case "garbage collection":
            return f"{place(c.rank, shape)}: {seconds(c.self_s)} of garbage collection per step; {cost}{waited}"
        case "host interference":
            kept = f"not scheduled for {seconds(c.self_s)} more than its {_peers(c.peers)}"
            return f"{place(c.rank, shape)}: {kept}, most of it in {what}; {cost}{waited}"
        case "waiting":
            idle = f"{seconds(c.self_s)} more than its {_peers(c.peers)} asleep, at a lock or in a read"
            return f"{place(c.rank, shape)}: {idle}, in {what}; {cost}{waited}"
    return f"{place(c.rank, shape)}: {what} {slower}; {cost}{waited}"


def _part(c: Culprit) -> str:
    if c.what != OTHER:
        return c.what
    return f"the time {c.where}" if c.where else "the time between its spans"


def _peers(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"
