"""Workers that are still there after SIGKILL: why, as text and as what a controller decides by."""

from collections.abc import Mapping

from holdfast.agent.processes.holders import Unending
from holdfast.base.errors import Unavailable
from holdfast.wire.holds import Hold

_ORDER = (Hold.KERNEL, Hold.SERVER, Hold.EXITING, Hold.HELD)
"""The first of several counts: a node with one worker that nothing explains is not explained by the others."""
_NAMED = 3


class UnendedError(Unavailable):
    """`hold` says what keeps them."""

    def __init__(self, unended: Mapping[int, tuple[int, Unending]], seconds: float) -> None:
        """`unended`: process id and reason, by rank. `seconds`: since SIGKILL."""
        self.hold = next(hold for hold in _ORDER if any(why.hold is hold for _, why in unended.values()))
        said = [f"rank {rank} (pid {pid}): {why.words}" for rank, (pid, why) in sorted(unended.items())[:_NAMED]]
        more = f", and {len(unended) - _NAMED} more" if len(unended) > _NAMED else ""
        super().__init__(f"still there {seconds:.0f} s after SIGKILL: {'; '.join(said)}{more}")
