"""Whether the nodes of a job send what its layout says. Pure numbers: no time, and nothing of plans.

Everything that looks like it is left out by what it cannot do. Uploads and retransmissions are sent and not received,
data is received and not sent: both directions must agree. Copies of snapshots are known, and taken off. Checkpoints
and evaluations are in few steps: medians count. Another program does not pause with the steps: what goes on in a step's
quietest stretch is taken off. Counters that miss the traffic show next to nothing of it: that is no evidence.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.network.traffic_pattern import Volume
from holdfast.controller.detectors.network.volumes import Copied
from holdfast.wire import types as t

_KIND = t.FindingKind.TRAFFIC_UNPLANNED
_COUNTED = 0.05  # of what is planned: below that the counters do not see the traffic
_BACK = 1.25  # a node is over its limit until it is so much better than it: nothing flaps there

Planned = tuple[float, float]
"""Bytes that a node sends and receives in a step."""
Row = tuple[float, float, float, float]
"""Of one step: what was sent and received, and the same without what others may have moved, as shares of the plan."""


class Side(StrEnum):
    LESS = "less"
    MORE = "more"


@dataclass(frozen=True, slots=True)
class Change:
    """A finding that begins, or that is over."""

    node: str
    """Empty: most nodes of the job."""
    side: Side
    text: str
    is_over: bool = False


@dataclass(slots=True)
class _Node:
    planned: Planned
    rows: deque[Row]
    seen: int = 0
    judged: int = 0
    side: Side | None = None
    lasts: int = 0
    """Steps since `side` is what it is."""
    share: float = 0.0
    """Of what is planned, in the direction that speaks less for a finding."""
    reported: Side | None = None


class UnplannedTraffic:
    """All nodes of one job; begins anew with each generation."""

    def __init__(self, tuning: Tuning) -> None:
        self._limits = tuning.limits(_KIND)
        self._steps = max(1, int(self._limits["steps"]))
        self._generation = -1
        self._forget()

    def _forget(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._off = dict.fromkeys(Side, 0)  # nodes by side
        self._known = 0  # nodes with enough steps to judge
        self._of_job: Side | None = None

    def observe(self, node: str, generation: int, volume: Volume, copies: Copied, planned: Planned) -> list[Change]:
        """One step of a node. `copies`: bytes of snapshots, sent and received, that it may have carried."""
        changes = []
        if generation != self._generation:
            changes = self.end("the job was started anew")
            self._generation = generation
        if min(planned) < self._limits["megabytes"] * 1e6:
            return changes + self._dropped(node)  # other messages weigh as much
        state = self._nodes.get(node)
        if state is None or state.planned != planned:
            changes += self._dropped(node)
            state = self._nodes[node] = _Node(planned, deque(maxlen=self._steps))
        state.seen += 1
        if state.seen <= self._limits["warm_up"]:
            return changes
        state.rows.append(_shares(volume, copies, planned))
        if len(state.rows) < self._steps:
            return changes
        self._judge(state)
        return changes + list(self._reports(node, state))

    def end(self, why: str) -> list[Change]:
        """What was found is over, and all is forgotten."""
        changes = [] if self._of_job is None else [Change("", self._of_job, why, is_over=True)]
        changes += [Change(name, one.reported, why, is_over=True) for name, one in self._nodes.items() if one.reported]
        self._forget()
        return changes

    def measured(self, node: str) -> Planned | None:
        """Bytes that a node sends and receives in a step, in the median of the newest; None: not enough of them yet."""
        state = self._nodes.get(node)
        if state is None or not state.judged:
            return None
        sent, received = (median(row[i] for row in state.rows) * state.planned[i] for i in range(2))
        return sent, received

    def _dropped(self, node: str) -> list[Change]:
        """Its plan is another one now."""
        state = self._nodes.pop(node, None)
        if state is None:
            return []
        self._known -= state.judged > 0
        if state.side is not None:
            self._off[state.side] -= 1
        return [Change(node, state.reported, "its plan is another one", is_over=True)] if state.reported else []

    def _judge(self, state: _Node) -> None:
        """Is it off its plan, and to which side? Between a limit and a fifth behind it nothing changes."""
        self._known += state.judged == 0
        state.judged += 1
        shares = [median(row[i] for row in state.rows) for i in range(4)]
        most, least = max(shares[:2]), min(shares[2:])
        less = self._limits["less"] * (_BACK if state.side is Side.LESS else 1.0)
        more = self._limits["more"] / (_BACK if state.side is Side.MORE else 1.0)
        side = Side.MORE if least > more else Side.LESS if _COUNTED < most < less else None
        state.share = least if side is Side.MORE else most
        if side is state.side:
            state.lasts += 1
            return
        for which, change in ((state.side, -1), (side, 1)):
            if which is not None:
                self._off[which] += change
        state.side, state.lasts = side, 1

    def _is_common(self, side: Side) -> bool:
        """Are most nodes off their plans to this side?"""
        return self._known > 1 and 2 * self._off[side] > self._known

    def _reports(self, node: str, state: _Node) -> Iterator[Change]:
        """What begins and ends with this step. A node is reported as many steps late as are looked at: what others do
        too shows in theirs by then, and is reported once."""
        if self._of_job is not None and not self._is_common(self._of_job):
            yield Change("", self._of_job, "most nodes move what the layout says", is_over=True)
            self._of_job = None
        if state.reported is not None and state.side is not state.reported:
            yield Change(node, state.reported, self._text(node, state), is_over=True)
            state.reported = None
        side = state.side
        if side is None or state.lasts < self._steps or side in (state.reported, self._of_job):
            return
        if not self._is_common(side):
            state.reported = side
            yield Change(node, side, self._text(node, state))
        elif self._of_job is None:
            self._of_job = side
            yield Change("", side, self._text_of_all(side))

    def _text(self, node: str, state: _Node) -> str:
        first = 2 if state.side is Side.MORE else 0
        moved = [median(row[first + i] for row in state.rows) * state.planned[i] / 1e6 for i in range(2)]
        much = f"{state.share:.3g} times" if state.share >= 1 else f"{state.share:.0%} of"
        out, back = (planned / 1e6 for planned in state.planned)
        return (
            f"{node} sends {moved[0]:.3g} MB and receives {moved[1]:.3g} MB in each step, {much} what the layout says "
            f"({out:.3g} MB and {back:.3g} MB)"
        )

    def _text_of_all(self, side: Side) -> str:
        shares = [one.share for one in self._nodes.values() if one.side is side]
        middle = median(shares)
        much = f"{middle:.3g} times" if middle >= 1 else f"{middle:.0%} of"
        return f"{len(shares)} of {self._known} nodes move {much} what the layout says in each step"


def _shares(volume: Volume, copies: Copied, planned: Planned) -> Row:
    moved, steady = (volume.tx, volume.rx), (volume.steady_tx, volume.steady_rx)
    own = [max(0.0, moved[i] - steady[i] - copies[i]) for i in range(2)]
    return moved[0] / planned[0], moved[1] / planned[1], own[0] / planned[0], own[1] / planned[1]
