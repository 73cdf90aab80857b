"""What heartbeats bring of nodes: that they live, gauges, traffic; what they bring of jobs goes to the jobs' brains."""

from collections.abc import Callable

from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.brain.roster import Roster
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.agents.silence import note_arrival
from holdfast.controller.detectors.node_detectors import NodeDetectors
from holdfast.controller.job import timekeeping
from holdfast.controller.state.events import Action, FrameSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

_BACK = (t.NodeState.SUSPECT, t.NodeState.LOST)


class Heartbeats:
    def __init__(
        self,
        cluster: ClusterState,
        roster: Roster,
        detectors: NodeDetectors,
        found: Callable[[list[Finding], Instant], list[Action]],
    ) -> None:
        """`found`: what is done with findings about nodes."""
        self.c, self.roster, self.detectors, self._found = cluster, roster, detectors, found

    def frame(self, event: FrameSeen, now: Instant) -> list[Action]:
        node, frame = self.c.nodes.get(event.node), event.frame
        if node is None:
            return []
        note_arrival(node, now.mono, frame.heartbeat_interval)
        actions: list[Action] = []
        if node.state in _BACK and node.connected:
            # A node that was given up has its stop orders in that stream; while a generation ends, they are waited for.
            self.c.set_healthy(node)
            for active in self.roster.active():
                actions += active.c.life.node_back(active.c.job, node.name, now)
        if frame.host:
            node.host, node.host_at = frame.host, now.mono
        for gauges in frame.gpus:
            node.gpus[gauges.index] = gauges.values
        fresh_bytes = _count_bytes(node, frame)
        if not self.roster.has_active:
            return actions + self._gauges(node, frame, False, now)
        for sample in frame.workers:
            brain = self._of(node, sample.job, sample.generation, sample.rank)
            if brain is not None and brain.c.active is not None:
                actions += brain.frames.sample(sample, node, frame.heartbeat_interval, now)
        holders = self.roster.holders(node.name)
        busy = bool(holders) and all(holder.frames.is_busy(node.name) for holder in holders)
        actions += self._gauges(node, frame, busy, now)
        for record in frame.steps:
            brain = self._of(node, record.job, record.generation, record.rank)
            if brain is not None and brain.c.active is not None:
                actions += brain.frames.step(record, node.name, now)
        for holder in holders:
            timekeeping.frame(holder.c, holder.c.job, node.name, frame)
        if len(holders) != 1 or not frame.nics:  # what jobs that share a node send is not known of each
            return actions
        return actions + holders[0].frames.traffic(node, frame, fresh_bytes, busy, now)

    def _of(self, node: Node, job: str, generation: int, rank: int) -> JobBrain | None:
        found = self.c.find(node.name, job, generation, rank)
        return self.roster.brains[found.spec.id] if found is not None else None

    def _gauges(self, node: Node, frame: t.Frame, busy: bool, now: Instant) -> list[Action]:
        if not (frame.host or frame.gpus):
            return []
        return self._found(self.detectors.gauges(node, frame, busy, now), now)


def _count_bytes(node: Node, frame: t.Frame) -> int:
    """Bytes since the node's last frame, both directions; keeps its running rates."""
    if not frame.nics:
        return 0
    tx, rx = sum(n.tx_total for n in frame.nics), sum(n.rx_total for n in frame.nics)
    width = (frame.mono_ns - node.counted_ns) / 1e9
    fresh_tx, fresh_rx = max(0, tx - node.tx_total), max(0, rx - node.rx_total)
    first = not node.counted_ns or width <= 0
    node.tx_total, node.rx_total, node.counted_ns = tx, rx, frame.mono_ns
    if first:
        return 0
    weight = min(1.0, width)  # a running mean over about a second
    node.tx_rate += weight * (fresh_tx / width - node.tx_rate)
    node.rx_rate += weight * (fresh_rx / width - node.rx_rate)
    return fresh_tx + fresh_rx
