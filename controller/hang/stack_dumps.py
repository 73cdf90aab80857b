"""The workers' stacks, asked of all agents at once and merged into one tree. Pure as all of the brain."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import Conflict
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Say
from holdfast.controller.state.model import Instant
from holdfast.diagnostics.hang.stack_tree import Stack, merge
from holdfast.wire import messages as msg
from holdfast.wire.rank_sets import expand

Json = dict[str, Any]

_MOST_ROWS = 2000


@dataclass(slots=True)
class _Round:
    """One time of asking."""

    at: Instant
    job: str
    generation: int
    waiting: dict[str, str]
    """Command and node, of those that have not answered."""
    stacks: list[Stack] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """The errors of nodes that could not dump stacks."""


class StackDumps:
    def __init__(self, job: JobState, on_answer: Callable[[msg.CommandResult, Instant], list[Action]]) -> None:
        """`on_answer` gets what agents answer; it is to pass it to `answered`."""
        self.c, self._on_answer = job, on_answer
        self.count = 0
        """How often the stacks were asked for."""
        self._round: _Round | None = None
        self._since = -math.inf

    def ask(self, now: Instant) -> list[Action]:
        """Ask all agents that hold workers. Conflict when nothing runs."""
        job = self.c.active
        if job is None or self.c.life.stage is not Stage.UP:
            raise Conflict("no job is running: there are no stacks")
        nodes = [name for name in job.nodes if name in self.c.nodes and self.c.nodes[name].connected]
        order = msg.DumpStacks()
        sends = [self.c.commands.issue(name, job.spec.id, job.generation, order, self._on_answer) for name in nodes]
        waiting = {send.command.id: send.node for send in sends}
        self._round = _Round(now, job.spec.id, job.generation, waiting)
        self._round.errors = {name: "away" for name in job.nodes if name not in nodes}
        self.count += 1
        return [Say("stacks.asked", {"job": job.spec.id, "nodes": len(nodes)}), *sends]

    def ask_once(self, since: float, now: Instant) -> list[Action]:
        """The same, once for each standstill: `since` is the moment of the last move, monotonic seconds."""
        if since <= self._since + 0.05:
            return []
        self._since = since
        return self.ask_again(now)

    def ask_again(self, now: Instant) -> list[Action]:
        """The same, if that can be now."""
        try:
            return self.ask(now)
        except Conflict:
            return []  # it ends or begins just now

    def answered(self, result: msg.CommandResult) -> bool:
        """Take an agent's answer, if it belongs to a command from here."""
        held = self._round
        node = held.waiting.pop(result.id, None) if held is not None else None
        if held is None or node is None:
            return False
        if not result.ok:
            held.errors[node] = result.error
            return True
        try:
            for entry in json.loads(result.data["stacks"]):
                held.stacks.append(Stack(expand(entry["ranks"]), str(entry["thread"]), tuple(entry["frames"])))
            held.states |= {int(rank): str(state) for rank, state in json.loads(result.data["states"]).items()}
        except (ValueError, KeyError, TypeError) as error:
            held.errors[node] = f"the answer has no stacks: {type(error).__name__}"
        return True

    @property
    def is_complete(self) -> bool:
        return self._round is not None and not self._round.waiting

    def of_standstill(self, generation: int, since: float = -math.inf) -> list[Stack]:
        """Those of the last standstill, once all have answered. `since`: when it began, monotonic seconds: earlier ones
        are of another."""
        held = self._round
        is_of_it = held is not None and held.generation == generation and max(self._since, since) <= held.at.mono
        return held.stacks if held is not None and is_of_it and not held.waiting else []

    def tree(self, generation: int | None = None) -> Json | None:
        """The last answers, as `http.models.Stacks`; None when they were not asked for, or for another generation."""
        held = self._round
        if held is None or (generation is not None and held.generation != generation):
            return None
        rows = merge(held.stacks)
        return {
            "at": held.at.wall,
            "job": held.job,
            "generation": held.generation,
            "missing": dict.fromkeys(sorted(held.waiting.values()), "no answer yet") | held.errors,
            "states": {str(rank): held.states[rank] for rank in sorted(held.states)},
            "rows": [{"depth": depth, "ranks": ranks, "frame": frame} for depth, ranks, frame in rows[:_MOST_ROWS]],
        }
