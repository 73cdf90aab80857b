"""Training stands still and every agent is connected: do the nodes of the job still reach each other? Pure.

Asked once for each standstill. A node is cut off when none of several peers reaches it and it reaches none of its own:
both sides say so, and no report by one node blames another. A cut that leaves groups of nodes is no single node's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_PEERS = 3  # each node probes at so many; as many probe peer at it
_PATIENCE = 3.0  # seconds for all answers, twice what a probe peer at a door that is not there takes


@dataclass(slots=True)
class _Round:
    at: float
    waiting: dict[str, tuple[str, str]]
    """Command -> (the node that probes, the node that is probed)."""
    heard: dict[tuple[str, str], str]


class Connectivity:
    def __init__(self, job: JobState, found: Callable[[list[Finding], Instant], list[Action]]) -> None:
        """`found`: what is done with findings."""
        self.c, self._found = job, found
        self._round: _Round | None = None
        self._since = -math.inf

    def ask_once(self, since: float, now: Instant) -> list[Action]:
        """`since`: the moment of the last move (mono), which distinguishes one standstill from the next."""
        job = self.c.active
        if job is None or since <= self._since + 0.05:
            return []
        self._since = since
        known = [self.c.nodes[name] for name in job.nodes if self.c.present(name)]
        doors = [node for node in known if node.identity.ping_port]
        if len(doors) <= _PEERS:
            return []
        waiting, sends = {}, []
        for i, node in enumerate(doors):
            for peer in (doors[(i + step) % len(doors)] for step in range(1, _PEERS + 1)):
                order = msg.ProbePeer(peer.identity.address, peer.identity.ping_port)
                sends.append(self.c.commands.issue(node.name, "", 0, order, self._answered))
                waiting[sends[-1].command.id] = node.name, peer.name
        self._round = _Round(now.mono, waiting, {})
        return [*sends]

    def is_open(self, now: Instant) -> bool:
        """Are answers still to come that may explain why no rank moves?"""
        held = self._round
        return held is not None and bool(held.waiting) and now.mono - held.at < _PATIENCE

    def _answered(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        """Findings when all have answered."""
        held = self._round
        pair = held.waiting.pop(result.id, None) if held is not None else None
        if held is None or pair is None:
            return []  # of an older round
        if result.ok:
            held.heard[pair] = result.data.get("behind", "")
        if held.waiting:
            return []
        self._round = None
        job = self.c.active
        away = [name for name in cut_off(held.heard) if job and job.ranks_on(name)]
        return self._found([_says(name, held.heard, now) for name in away], now)


def cut_off(heard: dict[tuple[str, str], str]) -> list[str]:
    """Nodes that reach no other node and that no other reaches, while most others reach each other."""
    nodes = sorted({name for pair in heard for name in pair})
    away = [
        name
        for name in nodes
        if all(any(pair[side] == name for pair in heard) for side in (0, 1))
        and all(behind == "unreachable" for pair, behind in heard.items() if name in pair)
    ]
    return away if 4 * len(away) <= len(nodes) else []


def _says(name: str, heard: dict[tuple[str, str], str], now: Instant) -> Finding:
    peers = sorted({other for pair in heard if name in pair for other in pair if other != name})
    text = f"training stands still: {name} reaches the controller, but none of its peers ({', '.join(peers)})"
    return finding(
        t.FindingKind.NODE_CUT_OFF, name, text, now, node=name, signature="cut-off",
        evidence={"heard": {f"{a} at {b}": behind for (a, b), behind in heard.items() if name in (a, b)}},
    )  # fmt: skip
