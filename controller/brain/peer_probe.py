"""A node is silent: do its peers still reach it? Distinguishes a network partition from a dead host. Pure.

Peer reports never evict a node by themselves: they say which of the two faults it is, as evidence of the incident.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_PEERS = 3
_UP = (t.NodeState.HEALTHY, t.NodeState.SPARE)


@dataclass(slots=True)
class _Round:
    waiting: dict[str, str]  # command -> peer
    heard: dict[str, str] = field(default_factory=dict)  # peer -> what it found


class PeerProbe:
    def __init__(self, cluster: ClusterState, found: Callable[[list[Finding], Instant], list[Action]]) -> None:
        """`found`: what is done with findings."""
        self.c, self._found = cluster, found
        self._rounds: dict[str, _Round] = {}  # by silent node

    def ask(self, node: Node) -> list[Action]:
        """Let some peers probe peer at this node, those with ranks of the same job first."""
        if not node.identity.ping_port:
            return []
        jobs = self.c.holders_of(node.name)
        holders = {name for job in jobs for name in job.nodes} if jobs else set(self.c.holders)
        peers = [n for n in self.c.nodes.values() if n is not node and n.connected and n.state in _UP]
        peers.sort(key=lambda n: (n.name not in holders, n.name))
        order = msg.ProbePeer(node.identity.address, node.identity.ping_port)
        sends = [self.c.commands.issue(peer.name, "", 0, order, self._answered) for peer in peers[:_PEERS]]
        self._rounds[node.name] = _Round({send.command.id: send.node for send in sends})
        return [*sends]

    def _answered(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        """A finding when all have answered, if the node is still silent."""
        name = next((name for name, r in self._rounds.items() if result.id in r.waiting), None)
        if name is None:
            return []  # of an older round
        round_ = self._rounds[name]
        peer = round_.waiting.pop(result.id)
        if result.ok:
            round_.heard[peer] = result.data.get("behind", "")
        if round_.waiting:
            return []
        del self._rounds[name]
        node = self.c.nodes.get(name)
        if node is None or node.state in _UP:
            return []  # it is connected again
        heard = round_.heard
        node.frozen = "frozen" in heard.values() and "answers" not in heard.values()
        if node.frozen:
            by = ", ".join(sorted(peer for peer, behind in heard.items() if behind == "frozen"))
            node.reason = f"{node.reason}; its host answers {by}, its agent does not: it is stopped or frozen"
        return self._found(self._verdict(name, heard, now), now)

    def _verdict(self, name: str, heard: dict[str, str], now: Instant) -> list[Finding]:
        reached = sorted(peer for peer, behind in heard.items() if behind == "answers")
        if reached:
            kind = t.FindingKind.NODE_PARTITIONED
            text = f"{name} is silent, but its agent answers {', '.join(reached)}: its path to the controller is cut"
        elif heard and set(heard.values()) == {"unreachable"}:
            kind = t.FindingKind.NODE_UNREACHABLE
            text = f"{name} is silent, and {', '.join(sorted(heard))} cannot reach its host either"
        else:
            return []  # the host is there, and its agent is frozen or gone: what silence says already
        return [finding(kind, name, text, now, node=name, evidence={"heard": heard})]
