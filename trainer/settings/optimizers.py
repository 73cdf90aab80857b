"""All optimizers: one entry each. Settings, refusals, documentation and the trainer are derived from it. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerEntry:
    """What is known of an optimizer before torch is imported."""

    name: str
    """As `optim.name` has it."""
    rule: str
    """Its class, an `UpdateRule`, as module:Class. Imported by the trainer alone."""
    when: str
    """When to choose it, in a few words: for the documentation."""
    whole: bool = False
    """Whether it needs whole matrices, and gradients of whole matrices, on every rank that holds any of them."""
    elementwise: bool = False
    """Whether it updates each element without the others, so that some can be updated by themselves."""
    fixed: tuple[str, ...] = ()
    """Keys of [optim] that decide what its state means: a run goes on from a checkpoint only if they are equal."""

    def obstacle(self, dp: int, tp: int, zero: int, pipes: int) -> str | None:
        """Why it cannot update what lies on the ranks in this way, None if it can."""
        if not self.whole:
            return None
        if tp > 1:
            return f"optim.name = {self.name} needs whole matrices, and tp ranks split them (set parallel.tp = 1)"
        if dp > 1 and zero:
            return (
                f"optim.name = {self.name} needs whole matrices, and parallel.zero = {zero} shards them "
                "(set parallel.zero = 0)"
            )
        if pipes > 1:
            return f"optim.name = {self.name} needs one pipe, and the schedule has {pipes} (choose 1f1b)"
        return None


OPTIMIZERS = {
    one.name: one
    for one in (
        OptimizerEntry("adamw", "holdfast.trainer.optim.adamw:AdamW", "always, unless another is needed",
                       elementwise=True),
        OptimizerEntry("lamb", "holdfast.trainer.optim.lamb:Lamb", "the batch is too large for adamw"),
        OptimizerEntry("sgd", "holdfast.trainer.optim.sgd:Sgd", "as a baseline: it keeps one average",
                       elementwise=True),
        OptimizerEntry("dp-kfac", "holdfast.trainer.optim.dp_kfac:DpKfac",
                       "steps are dear, and matrices small enough to invert", whole=True,
                       fixed=("kfac_form", "kfac_others", "kfac_largest")),
    )
}  # fmt: skip
