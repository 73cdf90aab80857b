"""An NVML without a GPU: pynvml's own constants, errors and structures around made-up figures."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class Board:
    """One GPU. `fail` maps a function's name to the NVML error code that it raises."""

    uuid: str
    links: int = 0
    links_off: int = 0
    ecc: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    reasons: int = 0
    recovery: int = 0
    events: int = pynvml.nvmlEventTypeXidCriticalError
    fail: dict[str, int] = field(default_factory=dict)
    fields_off: frozenset[int] = frozenset()
    pids: tuple[int, ...] = ()
    milliwatts: int = 512_500
    memory_percent: int = 40
    pcie_kb: int = 0
    link_kib: int = 0


class FakeNvml:
    """Stands for the module `pynvml`; `calls` counts by function name."""

    def __init__(self, boards: list[Board], init_error: int = 0) -> None:
        self.boards, self.init_error = boards, init_error
        self.pending: deque[tuple[Board, int]] = deque()
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name)):
            raise AssertionError(f"the fake lacks {name}")
        return getattr(pynvml, name)  # AttributeError for what the library does not have either

    def nvmlInit(self) -> None:
        if self.init_error:
            raise pynvml.NVMLError(self.init_error)

    def nvmlShutdown(self) -> None:
        self.calls["nvmlShutdown"] = 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:
        return self._on(self.boards[index], "nvmlDeviceGetHandleByIndex", lambda b: b)

    def _on(self, board: Board, name: str, answer: Callable[[Board], Any]) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        if name in board.fail:
            raise pynvml.NVMLError(board.fail[name])
        return answer(board)

    def nvmlDeviceGetUUID(self, h: Board) -> str:
        return str(self._on(h, "nvmlDeviceGetUUID", lambda b: b.uuid))

    def nvmlDeviceGetName(self, h: Board) -> str:
        return str(self._on(h, "nvmlDeviceGetName", lambda b: "NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetPciInfo(self, h: Board) -> Any:
        info = pynvml.nvmlPciInfo_t()
        info.busId = b"00000000:9B:00.0"
        return self._on(h, "nvmlDeviceGetPciInfo", lambda b: info)

    def nvmlDeviceGetMemoryInfo(self, h: Board) -> Any:
        memory = pynvml.c_nvmlMemory_t()
        memory.total, memory.used, memory.free = 80 << 30, 60 << 30, 20 << 30
        return self._on(h, "nvmlDeviceGetMemoryInfo", lambda b: memory)

    def nvmlDeviceGetUtilizationRates(self, h: Board) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = 97, h.memory_percent
        return self._on(h, "nvmlDeviceGetUtilizationRates", lambda b: rates)

    def nvmlDeviceGetTemperature(self, h: Board, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(self._on(h, "nvmlDeviceGetTemperature", lambda b: 61))

    def nvmlDeviceGetPowerUsage(self, h: Board) -> int:
        return int(self._on(h, "nvmlDeviceGetPowerUsage", lambda b: b.milliwatts))

    def nvmlDeviceGetEnforcedPowerLimit(self, h: Board) -> int:
        return int(self._on(h, "nvmlDeviceGetEnforcedPowerLimit", lambda b: 700_000))

    def nvmlDeviceGetComputeRunningProcesses(self, h: Board) -> list[Any]:
        pids: list[int] = self._on(h, "nvmlDeviceGetComputeRunningProcesses", lambda b: b.pids)
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in pids]

    def nvmlDeviceGetPcieThroughput(self, h: Board, counter: int) -> int:
        assert counter in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        return int(self._on(h, "nvmlDeviceGetPcieThroughput", lambda b: b.pcie_kb))

    def nvmlDeviceGetClockInfo(self, h: Board, kind: int) -> int:
        megahertz = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind]
        return int(self._on(h, "nvmlDeviceGetClockInfo", lambda b: megahertz))

    def nvmlDeviceGetCurrentClocksEventReasons(self, h: Board) -> int:
        return int(self._on(h, "nvmlDeviceGetCurrentClocksEventReasons", lambda b: b.reasons))

    def nvmlDeviceGetTotalEccErrors(self, h: Board, kind: int, counter: int) -> int:
        return int(self._on(h, "nvmlDeviceGetTotalEccErrors", lambda b: b.ecc + 10 * kind + counter))

    def nvmlDeviceGetRemappedRows(self, h: Board) -> tuple[int, int, int, int]:
        rows: tuple[int, int, int, int] = self._on(h, "nvmlDeviceGetRemappedRows", lambda b: b.rows)
        return rows

    def nvmlDeviceGetNvLinkState(self, h: Board, link: int) -> int:
        if link >= h.links:
            raise pynvml.NVMLError(
                pynvml.NVML_ERROR_NOT_SUPPORTED if not h.links else pynvml.NVML_ERROR_INVALID_ARGUMENT
            )
        return int(self._on(h, "nvmlDeviceGetNvLinkState", lambda b: int(link >= b.links_off)))

    def nvmlDeviceGetFieldValues(self, h: Board, fields: list[Any]) -> Any:
        answers = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for answer, asked in zip(answers, fields, strict=True):
            answer.fieldId = asked[0] if isinstance(asked, tuple) else asked
            answer.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            answer.value.ullVal = {230: h.recovery, 138: h.link_kib, 139: 0}.get(answer.fieldId, 1000)
            answer.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if answer.fieldId in h.fields_off else 0
        self.calls["fields"] = len(fields)
        return self._on(h, "nvmlDeviceGetFieldValues", lambda b: answers)

    def nvmlDeviceGetSupportedEventTypes(self, h: Board) -> int:
        return int(self._on(h, "nvmlDeviceGetSupportedEventTypes", lambda b: b.events))

    def nvmlDeviceRegisterEvents(self, h: Board, types: int, event_set: object) -> None:
        self._on(h, "nvmlDeviceRegisterEvents", lambda b: None)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlEventSetFree(self, event_set: object) -> None:
        self.calls["nvmlEventSetFree"] = 1

    def nvmlEventSetWait_v2(self, event_set: object, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "the agent must not wait here"
        if not self.pending:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        board, code = self.pending.popleft()
        if code < 0:
            raise pynvml.NVMLError(-code)
        return SimpleNamespace(device=board, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=code)
