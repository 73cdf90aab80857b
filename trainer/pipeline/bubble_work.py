"""How long DP-KFAC's work takes beside the computations between which it is done, by counting multiplications.

A function of sizes alone: no clock has a part in a plan, which is the same on all ranks and after a restart. It decides
where work is put, and so which of it is late; whether a gap really is long enough shows in the run.
"""

from __future__ import annotations

from collections import defaultdict

from holdfast.plan.plan import Action, Op
from holdfast.plan.transformer import score_pairs
from holdfast.trainer.optim.matrices import INVERSION, TABLES, cost, is_preconditioned, owners, rounds
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.pipeline.job_plan import BubbleWork
from holdfast.trainer.settings.checks import STAGE_AWARE, recompute_of
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import TrainerLayout, vocab_of


def bubble_work(config: Config, layout: TrainerLayout) -> BubbleWork | None:
    """What the settings want in the bubbles, None if they want nothing there. Times are in multiplications."""
    return _Counted(config, layout).work() if config.optim.kfac_fill else None


class _Counted:
    """Multiplications by action. Where replicas differ, those of the one that has the most to do."""

    def __init__(self, config: Config, layout: TrainerLayout) -> None:
        self._config, self._layout = config, layout
        vocab, samples = vocab_of(config.data.tokenizer), config.train.micro_batch_size
        self._rows = samples * config.data.seq_len
        """Of a matrix's inputs in a micro-batch."""
        pairs = 2 * samples * config.model.d_model * score_pairs(config.data.seq_len, config.model.window)
        self._forward: list[float] = []
        self._attention: list[float] = []
        """By stage."""
        self._inversions: dict[tuple[int, int], float] = {}
        """By stage and round."""
        self._statistics: dict[tuple[int, int], float] = {}
        """By stage and side: 0 for inputs, 1 for gradients of outputs."""
        held = [list(held_by(config, layout, vocab, stage)) for stage in range(layout.stages)]
        for stage, parameters in enumerate(held):
            products = [one.shape for one in parameters if len(one.shape) == 2 and one.name not in TABLES]
            head = [one.shape for one in parameters if one.name == TABLES[0] and stage == layout.stages - 1]
            layers = len(layout.layers_of(stage, config.model.layers))
            self._attention.append(layers * pairs)
            self._forward.append(self._rows * sum(a * b for a, b in (*products, *head)) + layers * pairs)
        for rank in range(layout.pp):
            of_rank = [
                (stage, one.shape)
                for stage in layout.stages_of(rank)
                for one in held[stage]
                if is_preconditioned(config.optim, one.name, one.shape)
            ]
            self._share_out([stage for stage, _ in of_rank], [(shape[0], shape[1]) for _, shape in of_rank])

    def _share_out(self, stages: list[int], shapes: list[tuple[int, int]]) -> None:
        """Count what the owners of a rank's matrices do with them."""
        layout, optim = self._layout, self._config.optim
        costs = [cost(shape, layout.local_micro_batches * self._rows) for shape in shapes]
        whose = owners(costs, layout.replicas, optim.kfac_owners)
        of_owner: dict[tuple[int, int, int], float] = defaultdict(float)
        for stage, shape, owner, turn in zip(stages, shapes, whose, rounds(stages, whose), strict=True):
            took = INVERSION[optim.kfac_form] * sum(float(size) ** 3 for size in shape)
            self._inversions[stage, turn] = max(took, self._inversions.get((stage, turn), 0.0))
            for side, size in enumerate(reversed(shape)):
                of_owner[stage, side, owner] += float(self._rows * size**2)
        for (stage, side, _), took in of_owner.items():
            self._statistics[stage, side] = max(took, self._statistics.get((stage, side), 0.0))

    def work(self) -> BubbleWork:
        turns: dict[int, int] = defaultdict(int)
        for stage, turn in self._inversions:
            turns[stage] = max(turns[stage], turn + 1)
        return BubbleWork(self._duration, dict(turns))

    def _duration(self, action: Action) -> float:
        forward, pipes = self._forward[action.stage], self._layout.pipes
        # The first stage has no input to give a gradient to: it does its whole backward in the second half.
        halves = (0.0, 2 * forward) if action.stage == 0 else (forward, forward)
        share = float(action.share)
        match action.op:
            case Op.FORWARD | Op.RECOMPUTE:
                return forward * share
            case Op.BACKWARD:
                return (2 * forward + self._again(action.stage)) * share
            case Op.BACKWARD_INPUT:
                return (halves[0] + self._again(action.stage)) * share
            case Op.BACKWARD_WEIGHT:
                return halves[1] * share
            case Op.FACTOR:
                return self._statistics.get((action.stage, action.turn % 2), 0.0)
            case Op.INVERT:
                return self._inversions.get((action.stage, action.turn // pipes), 0.0)
        return 0.0

    def _again(self, stage: int) -> float:
        """What backward computes a second time. Of train.recompute = stage-aware that is not known before it runs: as
        if nothing were."""
        setting = self._config.train.recompute
        kind = "none" if setting == STAGE_AWARE else recompute_of(setting, stage)
        return {"full": self._forward[stage], "selective": self._attention[stage]}.get(kind, 0.0)
