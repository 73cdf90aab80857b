"""Nodes are gone and no spare is there: go on with a smaller layout now, or wait for them to come back. Pure.

Both cost work, counted here in seconds at the throughput from before the loss:

- Waiting until the nodes are back, after x seconds, costs x, and the restart.
- Going on costs a restart now, the rest of the throughput until the job is back at its size, and a second restart for
  that. The job grows `grow_after` seconds after the nodes are back.

It is unknown when they are back. What is known is how long other nodes were away, and that these have been away for so
long already. `choose` takes the wait with the least expected cost: 0 is to go on now, and a longer one is to wait so
long and to go on then. A later look with the same knowledge comes to the same moment.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

PRIOR_REPAIR_S = 1800.0
"""Mean time that nodes are away, as long as too few have come back to know."""
PRIOR_RESTART_S = 60.0
"""Seconds without a new step that a restart costs, as long as the job had none."""
ENOUGH = 3
"""So many absences are known before they alone are believed."""
_PARTS = 8  # of the prior distribution
_LONGEST_HOLD = 3600.0
_MOST_DOUBLED = 7


@dataclass(frozen=True, slots=True)
class Situation:
    """Times in seconds."""

    throughput: float
    """Predicted of the best layout on what is left, as a share of that before the loss: 0 to 1."""
    missing: int = 1
    """Nodes that have to come back."""
    away_s: float = 0.0
    """How long they have been away; of several, the one that left last."""
    absences: Sequence[float] = ()
    """How long nodes were away that are back."""
    restart_s: float = PRIOR_RESTART_S
    grow_after_s: float = 0.0
    """How long there must be room before the job grows."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What costs least. Costs are expected, in seconds at the throughput from before the loss."""

    wait_s: float
    """From now on; 0: go on with fewer now."""
    cost_s: float
    going_on_s: float
    """What going on now costs."""
    waiting_s: float
    """What waiting until they are back costs, however long that takes; infinite if it is unknown."""

    @property
    def waits(self) -> bool:
        return self.wait_s > 0


def choose(case: Situation) -> Choice:
    """The wait with the least expected cost; of equal ones the shortest.

    Between two known absences a longer wait only costs, so the waits to compare are 0 and those that end with an
    absence. ValueError for a throughput that is no share.
    """
    if not 0 <= case.throughput <= 1:
        raise ValueError(f"throughput is a share of the full one, not {case.throughput}")
    left = remaining(case)
    if not left:  # away for longer than any before: nothing says that they come back at all
        return Choice(0.0, math.inf, math.inf, math.inf)
    waits = [0.0, *(seconds for seconds, _ in left)]
    costs = [expected_cost(case, left, wait) for wait in waits]
    best = min(range(len(waits)), key=lambda n: (costs[n], waits[n]))
    return Choice(waits[best], costs[best], costs[0], costs[-1])


def expected_cost(case: Situation, left: Sequence[tuple[float, float]], wait: float) -> float:
    """Of waiting at most `wait` seconds, and going on with fewer nodes then. `left`: as `remaining` gives it."""
    return sum(
        chance * (seconds + case.restart_s if seconds <= wait and wait > 0 else wait + _going_on(case, seconds - wait))
        for seconds, chance in left
    )


def _going_on(case: Situation, back_s: float) -> float:
    """Cost of going on with fewer nodes when they are back in `back_s`."""
    small_s = max(0.0, back_s + case.grow_after_s - case.restart_s)
    return 2 * case.restart_s + (1 - case.throughput) * small_s


def remaining(case: Situation) -> list[tuple[float, float]]:
    """(seconds, probability) until all missing nodes are back, shortest first; empty when none was away for so long.

    All of n are back within x with the n-th power of the probability of one. Of k absences, a further one is longer
    than all with probability 1 / (k + 1) (Laplace's rule): it counts as twice the longest.
    """
    known = sorted(case.absences)
    if len(known) < ENOUGH:
        known = sorted([*known, *_prior()])
    known.append(2 * known[-1])
    longer = [seconds - case.away_s for seconds in known if seconds > case.away_s]
    count = len(longer)
    found = []
    for n, seconds in enumerate(longer):
        chance = ((n + 1) / count) ** case.missing - (n / count) ** case.missing
        found.append((seconds, chance))
    return found


def _prior() -> list[float]:
    """Middles of equally likely parts of an exponential distribution with the mean `PRIOR_REPAIR_S`."""
    return [-PRIOR_REPAIR_S * math.log(1 - (n + 0.5) / _PARTS) for n in range(_PARTS)]


def hold_before_growing(grow_after: float, returns: int) -> float:
    """Seconds that there must be room before the job grows onto nodes, the worst of which came back `returns` times
    within the day: twice as long for each return after the first, so that a flapping node costs no storm of
    restarts."""
    doubled = grow_after * 2.0 ** min(max(0, returns - 1), _MOST_DOUBLED)
    return max(grow_after, min(doubled, _LONGEST_HOLD))


def frontier(throughputs: Collection[tuple[int, float]], gain: float = 0.01) -> list[int]:
    """Of (nodes, throughput): the numbers of nodes that are worth it, by at least `gain` faster than any with fewer
    nodes. So the most nodes of these that are there are also the fastest."""
    found: list[int] = []
    best = 0.0
    for nodes, throughput in sorted(throughputs):
        if throughput > best * (1 + gain):
            found.append(nodes)
            best = throughput
    return found
