"""Why workers are still there after SIGKILL, as an agent's answer to `StopWorkers` says under `HOLD`."""

from enum import StrEnum

HOLD = "hold"


class Hold(StrEnum):
    HELD = "held"
    """A tracer or a frozen cgroup has them: they end when that lets go."""
    EXITING = "exiting"
    """They free what they have, or their threads end one after the other."""
    SERVER = "server"
    """The kernel waits for another host or process, as of a network file system."""
    KERNEL = "kernel"
    """The kernel waits for this host itself, a disk or a driver; or it is not known why."""


PASSES = (Hold.HELD, Hold.EXITING)
"""Holds that say nothing against a node, and are waited for."""
