"""A job whose iterations have parts of unlike lengths (SPB), as the co-scheduler sees it. Pure.

Of k replicas the one in role i goes back through the last i/k of the layers. Its part of an iteration is a task: it
takes f + (i/k) b seconds, and holds i/k of the activations of a full backward while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedJob:
    name: str
    roles: int
    """k: replicas, each on a slot of its own. In every iteration each takes another role."""
    forward_s: float
    backward_s: float
    """Of a full backward."""
    iterations: int
    sync_s: float = 0.0
    """From the end of an iteration's last role until the next one may begin. Slots are free in it."""
    states_bytes: float = 0.0
    """On each of its slots, from the job's beginning to its end: weights, gradients, optimizer states."""
    activation_bytes: float = 0.0
    """Of a full backward, while a role runs."""
    submitted_s: float = 0.0
    is_partial: bool = True
    """False: all roles go back through everything."""

    def share(self, role: int) -> float:
        """Of the layers, what a role from 1 to k goes back through."""
        return role / self.roles if self.is_partial else 1.0

    def seconds(self, role: int) -> float:
        return self.forward_s + self.share(role) * self.backward_s

    def activations(self, role: int) -> float:
        return self.share(role) * self.activation_bytes

    @property
    def full_s(self) -> float:
        """Of an iteration with slots of its own: its longest role goes back through everything."""
        return self.forward_s + self.backward_s

    @property
    def alone_s(self) -> float:
        """From its beginning to its end with slots of its own, whether roles are partial or not."""
        return self.iterations * (self.full_s + self.sync_s)

    @property
    def work_s(self) -> float:
        """Slot seconds of its iterations, were they full."""
        return self.iterations * self.roles * self.full_s
