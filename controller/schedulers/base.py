"""What every scheduler can be asked, and the pure comparison of what should be with what is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.controller.state.history import History
from holdfast.controller.state.model import Node
from holdfast.wire import types as t

MARK = "holdfast"
"""Every reason set by Holdfast begins with this: a node drained by others is theirs to let in."""


@dataclass(frozen=True, slots=True)
class Out:
    """A node that must get no work, and why, in one line."""

    node: str
    reason: str


class Scheduler(Protocol):
    """Errors of the world are Unavailable, in one line; each call may be repeated without harm."""

    name: str

    async def taken_out(self) -> set[str]:
        """Nodes that are out of service there by request of Holdfast."""

    async def evict(self, order: Out) -> None:
        """Keep new work off the node; Holdfast ends what runs there."""

    async def let_in(self, node: str) -> None:
        """Undo `evict`."""

    async def ask_for_nodes(self, reason: str) -> bool:
        """The job waits for room. False when nothing can be asked for."""


def outs(nodes: Mapping[str, Node], histories: Mapping[str, History]) -> dict[str, Out]:
    """Nodes that the scheduler must keep work off: evicted or cordoned, here or not, and lost."""
    found = {name: Out(name, f"lost: {n.reason}") for name, n in nodes.items() if n.state is t.NodeState.LOST}
    for name, history in histories.items():
        if history.evicted:
            found[name] = Out(name, history.evicted)
        elif history.cordoned:
            found[name] = Out(name, "cordoned")
    return found


def changes(wanted: Mapping[str, Out], known: set[str], out: set[str]) -> tuple[list[Out], list[str]]:
    """(nodes to drain, nodes to let in). `out`: those drained there by Holdfast; `known`: those that this controller
    has drained itself. A node that another controller drained stays drained."""
    return (
        [wanted[name] for name in sorted(wanted.keys() - out)],
        sorted((out & known) - wanted.keys()),
    )
