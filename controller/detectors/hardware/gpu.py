"""GPUs by their gauges: gone, broken memory, throttled, links down, memory that only ever grows."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.base.windows import BoundedDict, GrowthWindow, Latch
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts.xid import RECOVERY_ACTIONS, RecoveryAction
from holdfast.wire import types as t

_K = t.FindingKind
_LINK_ERRORS = (
    "nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors",
    "nvlink_receive_errors", "nvlink_link_recoveries",
)  # fmt: skip
_HOUR = 3600.0
_AGAIN = 600.0  # seconds that a state must be gone before it is reported again
_BLOCKS = 6  # parts of a leak's window: the least memory in use must grow from each to the next

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Gpu:
    node: str
    index: int
    now: Instant

    @property
    def key(self) -> tuple[str, int]:
        return self.node, self.index

    def says(
        self,
        kind: t.FindingKind,
        text: str,
        signature: str = "",
        severity: t.Severity | None = None,
        seconds: float = 0.0,
        **evidence: object,
    ) -> list[Finding]:
        name = f"{self.node}/gpu{self.index}"
        return [
            finding(
                kind, name, f"{name}: {text}", self.now,
                seconds=seconds, severity=severity, node=self.node, signature=signature,
                evidence={"gpu": self.index, **evidence},
            )
        ]  # fmt: skip


@dataclass(slots=True)
class _Throttle:
    at: float
    share: float = 0.0


class GpuDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._latch = Latch()
        self._errors = GrowthWindow(_HOUR)
        self._throttles: BoundedDict[tuple[str, int], _Throttle] = BoundedDict()
        self._fewest_down: BoundedDict[tuple[str, int], float] = BoundedDict()
        self._memory: BoundedDict[tuple[str, int], deque[tuple[float, float]]] = BoundedDict()

    def observe(self, node: Node, training: bool, now: Instant) -> list[Finding]:
        """`node.gpus` are fresh. `training`: every worker of the node is."""
        found: list[Finding] = []
        fewest_down = min((values.get("nvlinks_down", 0.0) for values in node.gpus.values()), default=0.0)
        for index, values in node.gpus.items():
            gpu = _Gpu(node.name, index, now)
            lost = values.get("lost", 0.0) > 0
            if self._new(gpu, _K.GPU_LOST, lost):
                found += gpu.says(_K.GPU_LOST, "the driver lost it")
            if lost:
                continue
            found += self._recovery(gpu, values)
            found += self._ecc(gpu, values)
            found += self._remapped(gpu, values)
            found += self._throttled(gpu, values)
            found += self._links(gpu, values, fewest_down)
            found += self._leak(gpu, values, training)
        return found

    def _new(self, gpu: _Gpu, what: str, bad: bool, hold: float = 0.0, clear: float = _AGAIN) -> bool:
        return self._latch.see((what, gpu.key), bad, gpu.now.mono, hold, clear)

    def _recovery(self, gpu: _Gpu, values: Values) -> list[Finding]:
        number = int(values.get("recovery_action", 0))
        action, words = RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else RECOVERY_ACTIONS[0]
        if self._new(gpu, _K.GPU_DRAIN, action is RecoveryAction.DRAIN):
            text = "the driver requests to drain it and then to reset it: running work may continue below full capacity"
            return gpu.says(_K.GPU_DRAIN, text, number=number)
        if not self._new(gpu, _K.GPU_RECOVERY, action.takes_gpu_away):
            return []
        return gpu.says(_K.GPU_RECOVERY, f"the driver requests to {words}", number=number)

    def _ecc(self, gpu: _Gpu, values: Values) -> list[Finding]:
        limits = self._tuning.limits(_K.GPU_ECC)
        found = []
        for kind in ("uncorrected", "corrected"):
            value, limit = values.get(f"ecc_{kind}_volatile"), limits[f"{kind}_per_hour"]
            if value is None:
                continue
            grown = self._errors.see((gpu.key, kind), value, gpu.now.mono)
            if self._new(gpu, kind, grown >= limit, clear=_HOUR):
                text = f"{grown:g} {kind} memory errors within an hour"
                found += gpu.says(_K.GPU_ECC, text, signature=kind, errors=grown, limit=limit)
        return found

    def _remapped(self, gpu: _Gpu, values: Values) -> list[Finding]:
        if self._new(gpu, "failed", values.get("remapped_rows_failed", 0) > 0):
            text = "a row remap failed: replace the GPU"
            return gpu.says(_K.GPU_ROW_REMAP, text, signature="failed", severity=t.Severity.CRITICAL)
        if self._new(gpu, "pending", values.get("remapped_rows_pending", 0) > 0):
            text = "a row remap is pending: reset the GPU when the job can spare it"
            return gpu.says(_K.GPU_ROW_REMAP, text, signature="pending")
        return []

    def _throttled(self, gpu: _Gpu, values: Values) -> list[Finding]:
        """By the share of time, as a running mean: throttling flickers."""
        if "hw_throttled" not in values:
            return []
        limits, now = self._tuning.limits(_K.GPU_THROTTLE), gpu.now.mono
        state = self._throttles.setdefault(gpu.key, _Throttle(now))
        weight = min(0.05, (now - state.at) / max(limits["seconds"], 1.0))  # no single reading says much
        state.share += weight * (values["hw_throttled"] - state.share)
        state.at = now
        if not self._new(gpu, _K.GPU_THROTTLE, state.share > limits["share"]):
            return []
        warm = f" at {values['temperature_celsius']:.0f} °C" if "temperature_celsius" in values else ""
        text = f"its hardware throttles it{warm}, {state.share:.0%} of the time"
        reasons = hex(int(values.get("clock_event_reasons", 0)))
        share, limit = state.share, limits["share"]
        return gpu.says(_K.GPU_THROTTLE, text, seconds=limits["seconds"], share=share, limit=limit, reasons=reasons)

    def _links(self, gpu: _Gpu, values: Values, fewest_down: float) -> list[Finding]:
        """A link that every GPU of the node lacks is how the machine is built, and no fault. So may be one GPU without
        any, where bridges join some GPUs only: unless its links were up before, that is worth a look and no alarm."""
        limits = self._tuning.limits(_K.GPU_NVLINK)
        found = []
        down, links = values.get("nvlinks_down", 0.0), values.get("nvlinks", 0.0)
        fewest = self._fewest_down[gpu.key] = min(self._fewest_down.get(gpu.key, down), down)
        if self._new(gpu, "down", down > fewest_down, limits["seconds"]):
            text, severity = f"{down:g} of its {links:g} NVLinks are down", t.Severity.CRITICAL
            if fewest >= links:
                text, severity = f"{text}, and none was ever up: is the bridge missing?", t.Severity.WARNING
            found += gpu.says(_K.GPU_NVLINK, text, signature="down", severity=severity, down=down)
        grown = {n: self._errors.see((gpu.key, n), values[n], gpu.now.mono) for n in _LINK_ERRORS if n in values}
        total, limit = sum(grown.values()), limits["errors_per_hour"]
        if self._new(gpu, "errors", total > limit, clear=_HOUR):
            worst = {name: count for name, count in grown.items() if count}
            text = f"{total:g} NVLink errors within an hour"
            found += gpu.says(_K.GPU_NVLINK, text, signature="errors", errors=worst, limit=limit)
        return found

    def _leak(self, gpu: _Gpu, values: Values, training: bool) -> list[Finding]:
        """The least memory in use grows from part to part of the window, for half a window."""
        samples = self._memory.setdefault(gpu.key, deque())
        if not training or not values.get("memory_total_bytes"):
            samples.clear()
            self._new(gpu, _K.GPU_MEMORY_LEAK, False, clear=0.0)
            return []
        limits, now = self._tuning.limits(_K.GPU_MEMORY_LEAK), gpu.now.mono
        window = limits["seconds"]
        if samples and now - samples[-1][0] < window / (20 * _BLOCKS):
            return []
        samples.append((now, values["memory_used_bytes"]))
        while samples[0][0] < now - window:
            samples.popleft()
        if now - samples[0][0] < 0.98 * window:
            return []
        least = [float("inf")] * _BLOCKS
        for at, used in samples:
            block = min(_BLOCKS - 1, int((at - samples[0][0]) / window * _BLOCKS))
            least[block] = min(least[block], used)
        rate = (least[-1] - least[0]) / (window * (_BLOCKS - 1) / _BLOCKS)  # bytes per second
        grows = all(later > before for before, later in pairwise(least))
        full_in = (values["memory_total_bytes"] - least[-1]) / rate if rate > 0 else float("inf")
        soon = grows and full_in < limits["full_within_seconds"]
        if not self._new(gpu, _K.GPU_MEMORY_LEAK, soon, window / 2, clear=float("inf")):
            return []
        text = f"memory in use grows by {rate * _HOUR / 2**20:.0f} MiB an hour and is full in {full_in / _HOUR:.1f} h"
        return gpu.says(_K.GPU_MEMORY_LEAK, text, seconds=window, bytes_per_s=rate, full_in_s=full_in)
