"""Whose gradients were the first that are not finite, of ranks whose parameters all became so in one all-reduce."""

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


class GradientOrigins:
    """Names the ranks of one job whose gradients were the first that were not finite.

    Every rank must have said since when its own are not finite, or that they are: one that has not may have been the
    first.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._since: dict[int, int] = {}
        self._nodes: dict[int, str] = {}

    def saw(self, seen: t.ProgressSeen, node: str) -> None:
        if seen.generation < self._generation:
            return
        if seen.generation > self._generation:
            self._generation, self._since = seen.generation, {}
        self._since[seen.rank], self._nodes[seen.rank] = seen.number, node

    def first(self, generation: int, world: int) -> tuple[int, int, str] | None:
        """The rank that was the only first one of all, the step of its optimizer, and its node."""
        if generation != self._generation or len(self._since) < world:
            return None
        bad = sorted((since, rank) for rank, since in self._since.items() if since >= 0)
        if not bad or (len(bad) > 1 and bad[0][0] == bad[1][0]):
            return None
        return bad[0][1], bad[0][0], self._nodes[bad[0][1]]


def origin_finding(rank: int, step: int, node: str, before: Finding, now: Instant) -> Finding:
    """The cause of `before`, which says only that parameters are not finite."""
    text = (
        f"a gradient of rank {rank} was not finite at its optimizer step {step}, before it was reduced: it made the "
        "parameters of all ranks NaN or infinite"
    )
    seconds = now.wall - before.since + 1e-3
    evidence = {**before.evidence, "optimizer_step": step}
    return finding(
        t.FindingKind.LOSS_NONFINITE, f"rank{rank}", text, now, seconds=seconds, node=node, rank=rank, evidence=evidence
    )
