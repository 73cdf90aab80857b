"""Whether a training run's losses leap or diverge. Pure: one loss after the other goes in, of whatever scale or sign.

It must hold for any script: losses of 1e-6 or of 1e6, log-likelihoods below zero, two losses in turns, sums that only
grow. So a value is compared with all that this run has shown before, not with its last few values, and a rise below
`LEAST_RISE` is never reported.
"""

import itertools
import math
from collections import deque
from dataclasses import dataclass
from statistics import median

LEAPS, DIVERGES = "loss-leap", "loss-divergence"
"""Kinds of the two in an agent's report of a printed loss."""
FEWEST = 20
"""Losses before anything is reported; and those in a row that make a divergence."""
LEAP = 20.0
"""Times the whole spread of the losses so far, or the median, by which one loss leaps above them."""
DIVERGED = 10.0
"""Times the best median of `FEWEST` losses; or twice this times the first loss where no later ones are near it."""
WORSE = 10.0
"""And times the spread of all losses until then: a harder stage of a curriculum is no worse than an untrained model."""
LEAST_RISE = 1.0
"""Losses are made to be of the order of 1: near zero a hard batch is any number of times the median."""
_KEPT = 128
_BLOCKS = 25
"""Blocks of `FEWEST` losses in which one has to diverge. Over longer times a printed loss grows with its scale."""
_FAR = 1e4  # times the first loss: no noise


@dataclass(frozen=True, slots=True)
class LossProblem:
    diverges: bool
    step: int
    """The step of the leap, or the first from which on all losses are high; -1: not known."""
    count: int
    """That loss's number in its series, from 1."""
    value: float
    usual: float

    @property
    def text(self) -> str:
        where = f"step {self.step}" if self.step >= 0 else f"loss {self.count} of this run"
        if self.diverges:
            return f"training diverges since {where}: the loss is {self.value:.4g}; it was {self.usual:.4g}"
        return f"the loss leapt to {self.value:.4g} at {where}; the median before was {self.usual:.4g}"


class LossHistory:
    """Finds leaps and divergence in one series of losses.

    A divergence is reported once; a leap again after `FEWEST` more losses.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_KEPT)
        self._last: deque[tuple[int, int, float]] = deque(maxlen=FEWEST)  # step, number, loss
        self._block: list[float] = []
        self._blocks: deque[tuple[float, float]] = deque(maxlen=_BLOCKS)
        """Median of each `FEWEST` losses, and the highest of all losses until then."""
        self._first = math.nan
        self._first_step = -1
        self._gap = 0  # steps between the first two losses
        self._low, self._high = math.inf, -math.inf
        self._count = self._rest = 0
        self._diverges = False

    def observe(self, step: int, loss: float) -> LossProblem | None:
        """`step` -1: not known. Losses count in the order in which they come: an epoch may number from 0 again. What is
        not finite is reported by others."""
        if not math.isfinite(loss):
            return None
        if math.isnan(self._first):
            if not loss:
                return None  # 0 at the start is a sum that nothing was added to yet
            self._first, self._first_step = loss, step
        elif not self._gap:
            self._gap = max(1, step - self._first_step) if self._first_step >= 0 else 1
        self._count += 1
        self._rest -= 1
        self._last.append((step, self._count, loss))
        problem = self._leap(step, loss)
        return self._divergence() or problem

    def _add(self, loss: float) -> None:
        self._low, self._high = min(self._low, loss), max(self._high, loss)
        self._recent.append(loss)
        self._block.append(loss)
        if len(self._block) == FEWEST:
            self._blocks.append((median(self._block), self._high))
            self._block.clear()

    def _leap(self, step: int, loss: float) -> LossProblem | None:
        usual = median(self._recent) if len(self._recent) >= FEWEST and loss > self._high else math.nan
        scale = max(self._high - self._low, abs(usual))
        if not (scale and loss - usual > max(LEAP * scale, LEAST_RISE)):
            self._add(loss)
            return None
        # It says nothing of what is usual.
        is_news, self._rest = self._rest <= 0 and not self._diverges, FEWEST
        return LossProblem(False, step, self._count, loss, usual) if is_news else None

    def _divergence(self) -> LossProblem | None:
        if self._diverges or self._count <= FEWEST:
            return None
        values = [loss for _, _, loss in self._last]
        low = min(values)
        usual = self._reference(low, max(values))
        if usual is None or low - usual < LEAST_RISE or _is_sum(values):
            return None
        self._diverges = True
        step, count, _ = self._last[0]
        return LossProblem(True, step, count, median(values), usual)

    def _reference(self, low: float, high: float) -> float | None:
        """The better loss that these are far above, if they are."""
        first = self._first
        best, high_then = min(self._blocks, default=(math.inf, math.inf))
        if best < first + abs(first):
            rise = max((DIVERGED - 1) * abs(best), WORSE * (high_then - best))
            return best if low - best > rise else None
        # Only the first loss is lower. One value may be low by chance, as far as they differ among themselves; or it is
        # a sum over the first step that is divided by more.
        times = 2 * DIVERGED * self._gap
        if low - first <= (times - 1) * max(abs(first), LEAST_RISE):
            return None
        is_apart = low - first > high - low if first < 0 else low / first > min(high / low, _FAR)
        return first if is_apart else None


def _is_sum(values: list[float]) -> bool:
    """Do they only grow, by about as much each time? So does a sum of losses that is printed as it grows."""
    rises = [b - a for a, b in itertools.pairwise(values)]
    grown = [rise for rise in rises if rise >= 0]
    return len(grown) >= len(rises) - 1 and 0 < max(grown) <= 10 * median(grown)
