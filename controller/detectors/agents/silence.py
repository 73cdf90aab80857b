"""A node that stopped speaking: the wait adapts to the heartbeat interval and the jitter that this node showed."""

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node, Options
from holdfast.wire import types as t

_WEIGHT = 0.1  # of the newest gap in the running mean


def frame_interval(nodes: int, options: Options) -> float:
    """Seconds between frames to ask of each agent, so that the controller's load is bounded in any cluster."""
    return max(options.heartbeat_interval, round(nodes / options.frames_per_second, 3))


def note_arrival(node: Node, now: float, heartbeat_interval: float) -> None:
    """Keep mean and deviation of the gaps between this node's frames."""
    if node.frame_at:
        gap = now - node.frame_at
        delta = gap - node.gap_mean
        node.lag = max(gap - heartbeat_interval, 0.8 * node.lag)
        node.gap_mean = gap if not node.gap_mean else node.gap_mean + _WEIGHT * delta
        node.gap_dev += _WEIGHT * (abs(delta) - node.gap_dev)
    node.frame_at = now
    node.heartbeat_interval = heartbeat_interval


def silence_limit(node: Node, options: Options) -> float:
    """Seconds without a frame after which this node counts as silent.

    A floor; missed beats at the heartbeat interval that it was asked for; and what its own jitter makes plausible.
    """
    jitter = node.gap_mean + 8 * node.gap_dev
    return max(
        options.silence_floor,
        options.silence_beats * node.heartbeat_interval,
        min(jitter, 30 * node.heartbeat_interval),
    )


def silence_finding(node: Node, now: Instant, lag: float, options: Options) -> Finding | None:
    """A finding when a connected node is silent for longer than its limit; the controller's own lag does not count."""
    if not node.connected or not node.frame_at:
        return None
    silent = now.mono - node.frame_at - lag
    limit = silence_limit(node, options)
    if silent <= limit:
        return None
    return Finding(
        kind=t.FindingKind.NODE_SILENT,
        severity=t.Severity.WARNING,
        subject=node.name,
        text=f"no frame from {node.name} for {silent:.2f} s (limit {limit:.2f} s); its stream is still open",
        since=now.wall - (now.mono - node.frame_at),
        at=now.wall,
        node=node.name,
        evidence={"limit_s": limit, "gap_mean_s": node.gap_mean, "gap_dev_s": node.gap_dev},
    )


def stream_finding(node: Node, now: Instant) -> Finding:
    """The stream broke: the agent (or its host, or the network between) is gone. Workers may well live on."""
    return Finding(
        kind=t.FindingKind.AGENT_EXIT,
        severity=t.Severity.WARNING,
        subject=node.name,
        text=f"the stream of {node.name}'s agent broke; its workers may still run",
        since=now.wall - max(0.0, now.mono - node.frame_at) if node.frame_at else now.wall,
        at=now.wall,
        node=node.name,
    )
