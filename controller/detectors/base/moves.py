"""What the controller may do about a finding, and whose fault a finding may be: words of `findings.toml`."""

from enum import StrEnum


class Move(StrEnum):
    ALERT = "alert"
    """Go on and alert: there is no automatic repair."""
    WATCH = "watch"
    """Training may well go on: wait for the node to come back, act when progress stops."""
    RESTART = "restart"
    """Start the workers again in place, from the newest whole state."""
    DIAGNOSE = "diagnose"
    """Stop the workers and test the node first: a verdict `fail` evicts it, else they start again in place."""
    EVICT = "evict"
    """Evict the node and take a spare in its place; then as `restart`."""
    SHRINK = "shrink"
    """Evict the node and go on with fewer nodes, if the job may: there is no spare."""
    GROW = "grow"
    """Restart a shrunk job on more nodes, at once or when the running step is safe."""
    ROLL_BACK = "roll-back"
    """Restart from a checkpoint from before the finding: the newest state may contain its cause."""
    REQUEUE = "requeue"
    """Make a checkpoint, free the nodes for a job with a higher priority, and resume when capacity is restored."""
    STOP = "stop-job"
    """Mark the job failed: another restart would end the same way."""


class Fault(StrEnum):
    """Whose fault a kind of finding is, as far as the finding alone shows it."""

    PROGRAM = "program"
    """Never counts as a node failure; few restart attempts."""
    UNKNOWN = "unknown"
    """Counts as no node failure."""
    NODE = "node"
    """The node's own evidence: counts as a node failure."""
    BROKEN = "broken-node"
    """The node is certainly broken: it is evicted at once."""
