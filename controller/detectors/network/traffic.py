"""NIC traffic that stops while the job should be talking (MegaScale section 4.2: traffic that ceases entirely)."""

import math
from dataclasses import dataclass, field

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

_KIND = t.FindingKind.TRAFFIC_STOPPED
_BUCKET = 0.5  # seconds
_WORTH = 10_000.0  # bytes per second: below that a NIC is not a training NIC


@dataclass(slots=True)
class _Usual:
    rate: float = math.nan  # bytes/s, slow mean over training
    seconds: float = 0.0  # training time that it rests on
    quiet_since: float = math.nan
    bucket_at: float = 0.0
    bucket_bytes: int = 0


@dataclass(slots=True)
class TrafficDetector:
    """Per node: the usual rate while training, and for how long there has been next to nothing."""

    tuning: Tuning = field(default_factory=Tuning)
    usual: dict[str, _Usual] = field(default_factory=dict)
    _counted: tuple[int, int] = (0, 0)
    _counted_at: float = -math.inf

    def reset(self) -> None:
        """A new generation: what was quiet before proves nothing now."""
        for state in self.usual.values():
            state.quiet_since = math.nan
            state.bucket_at = 0.0

    def observe(
        self, node: str, new_bytes: int, training: bool, median_step: float, progress_at: float, now: Instant
    ) -> Finding | None:
        """`new_bytes`: both directions, all NICs, since the last call. `training`: every rank of the node is.

        `progress_at`: when the job last finished a step, on the monotonic clock; while steps are finished, nothing that
        they need has stopped.
        """
        state = self.usual.setdefault(node, _Usual())
        if not training:
            state.bucket_at, state.bucket_bytes, state.quiet_since = 0.0, 0, math.nan
            return None
        if not state.bucket_at:
            state.bucket_at, state.bucket_bytes = now.mono, 0
            return None
        state.bucket_bytes += new_bytes
        width = now.mono - state.bucket_at
        if width < _BUCKET:
            return None
        rate = state.bucket_bytes / width
        state.bucket_at, state.bucket_bytes = now.mono, 0
        if state.seconds >= 10 and state.rate >= _WORTH and rate < self.tuning.limit(_KIND, "share") * state.rate:
            if math.isnan(state.quiet_since):
                state.quiet_since = now.mono - width
            state.quiet_since = max(state.quiet_since, progress_at)
            return self._judge(node, state, median_step, now)
        state.quiet_since = math.nan
        state.rate = rate if math.isnan(state.rate) else state.rate + 0.05 * (rate - state.rate)
        state.seconds += width
        return None

    def _silent(self, now: Instant) -> tuple[int, int]:
        """How many nodes send next to nothing, of how many. Counted once, not for each of thousands."""
        if now.mono - self._counted_at >= _BUCKET:
            known = [state for state in self.usual.values() if state.seconds]
            self._counted_at = now.mono
            self._counted = sum(not math.isnan(state.quiet_since) for state in known), len(known)
        return self._counted

    def _judge(self, node: str, state: _Usual, median_step: float, now: Instant) -> Finding | None:
        quiet = now.mono - state.quiet_since
        limits = self.tuning.limits(_KIND)
        least, steps = limits["seconds"], limits["steps"]
        limit = max(steps * median_step, least) if not math.isnan(median_step) else 3 * least
        if quiet < limit:
            return None
        silent, known = self._silent(now)
        # A node that stops makes all others stop: the order of their reports says nothing.
        of_all = 2 * silent > known > 1
        who = f"{silent} of {known} nodes send and receive" if of_all else f"{node} sends and receives"
        text = f"{who} almost nothing for {quiet:.1f} s while training (usual {state.rate / 1e6:.2f} MB/s)"
        return finding(
            _KIND, "job" if of_all else node, text, now, seconds=quiet, node="" if of_all else node,
            signature="traffic", evidence={"usual_bytes_per_s": state.rate, "limit_s": limit},
        )  # fmt: skip
