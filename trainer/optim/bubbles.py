"""DP-KFAC's factors and inverses between a step's computations, where a pipeline's plan has bubbles for them.

Numbers are those of the same work at the step's end, but for inverses that the plan marks as late: they are of the
factors that the step before left, since the last statistics of a step come up when its last bubble is over. Whatever is
made within a step counts only once that step is applied. In the first update nothing is late.

Nothing of it is in a checkpoint: `settle` does what is left, by the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from holdfast.plan.plan import Action, Op
from holdfast.trainer.optim.factors import SIDES, Factors, LateStatistics
from holdfast.trainer.settings.config import OptimConfig


@dataclass(frozen=True, slots=True)
class Owned:
    """A matrix at its owner."""

    parameter: int
    """Id of what the model computes with."""
    factors: Factors
    dtype: torch.dtype
    """Of the factors."""
    stage: int
    round: int
    """In which of its stage's inversions it has its turn."""


class CurvatureInBubbles:
    """The work of one rank. Each step is `begin`, `do` of its list's actions in their order, then `accept` if it is
    applied."""

    def __init__(self, config: OptimConfig, owned: Sequence[Owned], actions: Sequence[Action]) -> None:
        """`actions` is the rank's list, of a schedule with one pipe."""
        self._config, self._owned = config, list(owned)
        late = {(action.stage, action.turn) for action in actions if action.op is Op.INVERT and action.late}
        self._is_late = {id(one): (one.stage, one.round) in late for one in owned}
        self._of_step: dict[int, LateStatistics] = {}
        """By matrix (its id, as everywhere here), of the step that is being done."""
        self._left: dict[int, LateStatistics] = {}
        """Of the step before: accepted, and in no factor yet."""
        self._to_invert: set[int] = set()
        """Whose inversion the step before left."""
        self._ready: dict[int, dict[str, Tensor]] = {}
        """What factors become when the step that is being done is accepted."""
        self._is_due = False
        """Whether this step inverts."""

    def begin(self, applied: int) -> None:
        """A step begins, after so many updates. What was seen in one that was not accepted is forgotten."""
        self._of_step, self._ready = {}, {}
        if applied % self._config.factor_every == 0:
            self._of_step = {id(one): LateStatistics(one.dtype) for one in self._owned}
        self._is_due = applied % self._config.invert_every == 0

    def inputs(self) -> Mapping[int, Callable[[Tensor], None]]:
        """What takes the inputs of matrices in forward, by id of the model's parameter."""
        return {
            one.parameter: partial(self._of_step[id(one)].keep, "in") for one in self._owned if id(one) in self._of_step
        }

    def outputs(self) -> Mapping[int, Callable[[Tensor, Tensor], None]]:
        """What takes the gradients of their outputs in backward."""
        return {
            one.parameter: partial(_keep_second, self._of_step[id(one)])
            for one in self._owned
            if id(one) in self._of_step
        }

    @torch.no_grad()
    def do(self, action: Action) -> None:
        """A FACTOR or INVERT of the list. No-op where there is nothing to do in this step."""
        mine = [one for one in self._owned if one.stage == action.stage]
        if action.op is Op.FACTOR:
            sums = self._left if action.late else self._of_step
            for one in mine:
                if (statistics := sums.get(id(one))) is not None:
                    statistics.add_next(SIDES[action.turn % 2])
            return
        for one in mine:
            if one.round == action.turn:
                self._invert(one, action.late)

    def _invert(self, one: Owned, is_late: bool) -> None:
        if is_late:
            self._finish(one)
        elif self._is_due:
            statistics = self._of_step.get(id(one))
            # What is not finite here is so in the loss too: at the step's end it is dropped, or an error as ever.
            if (found := one.factors.ahead(statistics, self._config.factor_decay, self._config.damping)) is not None:
                self._ready[id(one)] = found

    @torch.no_grad()
    def accept(self, applied: int) -> None:
        """The step is applied: bring the factors up to date before gradients are preconditioned."""
        for one in self._owned:
            key = id(one)
            assert key not in self._left, "the list does not invert what is late"
            if key in self._ready:
                one.factors.take(self._ready[key])
                continue
            if key in self._of_step:
                self._left[key] = self._of_step[key]
            if self._is_due:
                self._to_invert.add(key)
            if applied == 0 or not self._is_late[key]:
                self._finish(one)
        self._of_step, self._ready = {}, {}

    @torch.no_grad()
    def settle(self) -> None:
        """Do all that is left for the next step."""
        for one in self._owned:
            self._finish(one)

    def _finish(self, one: Owned) -> None:
        """Do what the step before left of a matrix."""
        if (statistics := self._left.pop(id(one), None)) is not None:
            one.factors.absorb(statistics, self._config.factor_decay)
        if id(one) in self._to_invert:
            self._to_invert.remove(id(one))
            one.factors.invert(self._config.damping)


def _keep_second(statistics: LateStatistics, x: Tensor, of_output: Tensor) -> None:
    statistics.keep("out", of_output)
