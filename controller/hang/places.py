"""Where in its script a rank stands that holds up the job, as text that is the same in every attempt; and whether steps
have begun. Pure.

By its place a pause is known again: limits double where a restart led to the same one. So a place must not change while
stacks are asked for again, nor with the way in which they are read.
"""

from collections.abc import Sequence

from holdfast.controller.state.ledger import Ledger
from holdfast.diagnostics.hang.stack_tree import Stack

_FRAMES = 3
"""Calls of the script that make up a place: what it calls below them varies while it works."""
_LOADERS = (
    "bootstrap.py:", "runpy.py:", "forked_children.py:", "forked_workers.py:", "fork_server.py:", "server_forks.py:",
    "<frozen runpy>:", "__main__.py:",
)  # fmt: skip


class Places:
    """The places of ranks in one standstill. Call `begin` when the job moves again."""

    def __init__(self) -> None:
        self._by_stack: dict[int, str] = {}

    def begin(self) -> None:
        self._by_stack.clear()

    def of(self, rank: int, stacks: Sequence[Stack], operation: str = "", awaited: str = "") -> str:
        """The place of this rank: its outermost calls where they were known at any time of the standstill, else the
        operation that it is in, or the one in which others wait for it (`awaited`).

        The first stacks count: they are read by signal in every attempt, and later ones in another way. While newer
        ones are asked for, none are known.
        """
        if rank not in self._by_stack and (calls := _calls(rank, stacks)):
            self._by_stack[rank] = " > ".join(calls[:_FRAMES])
        if known := self._by_stack.get(rank, ""):
            return known
        if operation:
            return f"in {operation}"
        return f"before {awaited.split(' ')[0]}" if awaited else "outside of operations"


def _calls(rank: int, stacks: Sequence[Stack]) -> list[str]:
    """The calls of its main thread, the outermost first, without those with which every worker begins."""
    for stack in stacks:
        calls = [frame for frame in stack.frames if not frame.startswith(_LOADERS)]
        if calls and stack.thread == "main" and rank in stack.ranks:
            return calls
    return []


def has_stepped(ledger: Ledger, generation: int) -> bool:
    """Has a step ended in this generation? What a rank says of its step may be from a checkpoint that it restored."""
    return generation > 0 and ledger.generation == generation
