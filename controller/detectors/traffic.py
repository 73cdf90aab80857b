"""NIC traffic that stops while the job should be talking (MegaScale section 4.2: traffic that ceases entirely)."""

import math
from dataclasses import dataclass, field

from holdfast import types as t
from holdfast.controller.model import Finding, Instant

_BUCKET = 0.5  # seconds
_SHARE = 0.01  # of the usual rate counts as stopped
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

    usual: dict[str, _Usual] = field(default_factory=dict)

    def reset(self) -> None:
        """A new generation: what was quiet before proves nothing now."""
        for state in self.usual.values():
            state.quiet_since = math.nan
            state.bucket_at = 0.0

    def observe(self, node: str, new_bytes: int, training: bool, median_step: float, now: Instant) -> Finding | None:
        """`new_bytes`: both directions, all NICs, since the last call. `training`: every rank of the node is."""
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
        if state.seconds >= 10 and state.rate >= _WORTH and rate < _SHARE * state.rate:
            if math.isnan(state.quiet_since):
                state.quiet_since = now.mono - width
            return self._judge(node, state, median_step, now)
        state.quiet_since = math.nan
        state.rate = rate if math.isnan(state.rate) else state.rate + 0.05 * (rate - state.rate)
        state.seconds += width
        return None

    def _judge(self, node: str, state: _Usual, median_step: float, now: Instant) -> Finding | None:
        quiet = now.mono - state.quiet_since
        limit = max(3 * median_step, 10.0) if not math.isnan(median_step) else 30.0
        if quiet < limit:
            return None
        return Finding(
            kind=t.FindingKind.TRAFFIC_STOPPED,
            severity=t.Severity.CRITICAL,
            subject=node,
            text=f"{node} sends and receives next to nothing for {quiet:.1f} s while training "
            f"(usual {state.rate / 1e6:.2f} MB/s)",
            since=now.wall - quiet,
            at=now.wall,
            node=node,
            signature="traffic",
            evidence={"usual_bytes_per_s": state.rate, "limit_s": limit},
        )
