"""Commands that were sent, and what waits for their answers. Pure.

An id is never reused: it begins with the controller's boot. An answer counts only if it comes from the node that
the command was sent to.
"""

from collections.abc import Callable

from holdfast.controller.state.events import Action, Send
from holdfast.controller.state.model import Instant
from holdfast.wire import messages as msg

Answered = Callable[[msg.CommandResult, Instant], list[Action]]
"""What to do with an answer."""
_MOST = 200_000
"""Commands whose answers are waited for: nodes that are lost never answer."""


def ignored(_: msg.CommandResult, __: Instant) -> list[Action]:
    return []


class CommandBook:
    def __init__(self, boot: str) -> None:
        self.boot = boot
        self._issued = 0
        self._open: dict[str, tuple[str, Answered]] = {}
        """Node and continuation by id, oldest first."""

    def issue(
        self, node: str, job: str, generation: int, order: msg.Order, answered: Answered = ignored, id: str = ""
    ) -> Send:
        """A command to `node`; `answered` is called with its answer. `id`: of an earlier run's command, sent again."""
        if not id:
            self._issued += 1
            id = f"{self.boot}-{self._issued}"
        self._open[id] = node, answered
        while len(self._open) > _MOST:
            self._open.pop(next(iter(self._open)))
        return Send(node, msg.Command(id, job, generation, order))

    def take(self, node: str, result: msg.CommandResult) -> Answered | None:
        """What this answer is for; None when `node` owes no such answer."""
        owed = self._open.get(result.id)
        if owed is None or owed[0] != node:
            return None
        del self._open[result.id]
        return owed[1]
