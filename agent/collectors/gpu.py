"""NVIDIA GPUs through NVML: gauges, errors, and Xid events without a thread.

What a GPU or driver does not support is asked once. Any other error rests that one query for a while, so a sick
GPU costs neither the agent's time nor the other GPUs' figures. A query can hang in a sick driver: call `collect`
and `poll_xids` from a thread that nothing else waits for.
"""

import ctypes
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.facts.xid import OFF_THE_BUS, Xid
from holdfast.wire.types import Gpu, GpuGauges

LIBRARY = "libnvidia-ml.so.1"
REST = 60.0
"""Seconds without a query that failed for a reason that may pass."""
NEVER = float("inf")
MAX_EVENTS = 64
HW_THROTTLE = 0x8 | 0x40 | 0x80
"""Clock event reasons that mean a hardware fault: slowdown, thermal, power brake."""

FIELDS: tuple[tuple[str, str, float], ...] = (
    ("memory_temperature_celsius", "NVML_FI_DEV_MEMORY_TEMP", 1.0),
    ("energy_joules", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
    ("pcie_replays", "NVML_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
    ("recovery_action", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 1.0),
    ("nvlink_crc_flit_errors", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0),
    ("nvlink_crc_data_errors", "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 1.0),
    ("nvlink_replay_errors", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1.0),
    ("nvlink_recovery_errors", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1.0),
    ("sw_thermal_throttle_seconds", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", 1e-9),
    ("hw_thermal_throttle_seconds", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 1e-9),
    ("hw_power_brake_seconds", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 1e-9),
)
LINK_FIELDS: tuple[tuple[str, str], ...] = (  # asked per link, added up
    ("nvlink_receive_errors", "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS"),
    ("nvlink_link_recoveries", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"),
)
_VALUE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_ALL_LINKS = 0xFFFFFFFF

Query = Callable[[Any, Any], dict[str, float]]
"""(nvml, handle) -> values"""


def _text(raw: bytes | str) -> str:
    """NVML structures hold bytes where its functions give text."""
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw


def load_nvml() -> tuple[Any, str]:
    """The `pynvml` module, or None and why not. Its 8,000 lines are imported only where a driver is."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return None, f"no NVIDIA driver: {LIBRARY} not found"
    try:
        return importlib.import_module("pynvml"), ""
    except ImportError:
        return None, "nvidia-ml-py is not installed"


class GpuCollector:
    """All GPUs of the node. `gpus` is their identity; a GPU that is lost at the start has an empty UUID."""

    name = "gpu"

    def __init__(
        self,
        nvml: Any = None,
        interval: float = 1.0,
        slow_every: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nvml`: the pynvml module or its like; None finds it. `slow_every`: error counters and links are read
        at every so many calls of `collect`, and stand unchanged in the answers between."""
        self.interval = interval
        self.available, self.absent_reason = False, ""
        self.gpus: tuple[Gpu, ...] = ()
        self.driver = ""
        self.events_available = False
        """Whether Xids come as events; if not, the kernel log has them."""
        self._clock, self._slow_every, self._round = clock, max(1, slow_every), 0
        self._handles: list[Any] = []
        self._denied: set[int] = set()  # GPUs that this process may not ask: another container's, and not lost
        self._rests: dict[tuple[int, str], float] = {}
        self._slow: list[dict[str, float]] = []
        self._links: list[tuple[int, ...]] = []
        self._fields_off: set[tuple[int, str]] = set()
        self._limits: dict[int, float] = {}
        self._event_set: Any = None
        if nvml is None:
            nvml, self.absent_reason = load_nvml()
            if nvml is None:
                return
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.absent_reason = f"NVML: {error}"
            return
        self.available = count > 0
        self.absent_reason = "" if count else "NVML: no GPU"
        self._find(count)
        self._register()

    # --- the start

    def _find(self, count: int) -> None:
        self.driver = str(self._call("nvmlSystemGetDriverVersion", default=""))
        found = []
        for index in range(count):
            handle = self._handle(index)
            self._handles.append(handle)
            self._slow.append({})
            self._links.append(())
            if handle is None:
                found.append(Gpu(index, "", "", ""))
                continue
            pci = self._call("nvmlDeviceGetPciInfo", handle)
            memory = self._call("nvmlDeviceGetMemoryInfo", handle)
            found.append(
                Gpu(
                    index=index,
                    uuid=str(self._call("nvmlDeviceGetUUID", handle, default="")),
                    model=str(self._call("nvmlDeviceGetName", handle, default="")),
                    pci=_text(pci.busId) if pci is not None else "",
                    memory_bytes=int(memory.total) if memory is not None else 0,
                )
            )
            self._links[index] = self._present_links(handle)
        self.gpus = tuple(found)

    def _handle(self, index: int) -> Any:
        """None for a GPU that cannot be reached, or must not be."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                self._denied.add(index)
            return None

    def _present_links(self, handle: Any) -> tuple[int, ...]:
        """Links that exist. NOT_SUPPORTED is no link at all; a link that exists but is off is a fault to show."""
        numbers = range(int(self._nvml.NVML_NVLINK_MAX_LINKS))
        return tuple(n for n in numbers if self._call("nvmlDeviceGetNvLinkState", handle, n) is not None)

    def _call(self, function: str, *args: Any, default: Any = None) -> Any:
        """A call whose failure is an answer too. Old bindings lack functions, which counts as a failure."""
        try:
            return getattr(self._nvml, function)(*args)
        except (self._nvml.NVMLError, AttributeError):
            return default

    def _register(self) -> None:
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError
        try:
            event_set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        registered = 0
        for handle in self._handles:
            if handle is None:
                continue
            try:
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, event_set)
                    registered += 1
            except nvml.NVMLError:
                continue
        if registered == len(self._handles) and registered:
            self._event_set, self.events_available = event_set, True
        else:  # half a view would hide the rest: the kernel log sees all GPUs
            self._call("nvmlEventSetFree", event_set)

    # --- again and again

    def collect(self) -> tuple[GpuGauges, ...]:
        """Gauges of every GPU; base units. `lost` is 1 for a GPU that the driver cannot reach. Never raises."""
        if not self.available:
            return ()
        slow = self._round % self._slow_every == 0
        self._round += 1
        return tuple(GpuGauges(index, self._one(index, slow)) for index in range(len(self._handles)))

    def _one(self, index: int, slow: bool) -> dict[str, float]:
        handle = self._handles[index]
        if handle is None:
            return {} if index in self._denied else {"lost": 1.0}
        values: dict[str, float] = {"lost": 0.0}
        for name, query in FAST:
            if self._ask(index, name, partial(query, self._nvml, handle), values):
                return {"lost": 1.0}
        if slow:
            fresh: dict[str, float] = {}
            for name, query in SLOW:
                self._ask(index, name, partial(query, self._nvml, handle), fresh)
            self._ask(index, "fields", partial(self._field_values, index, handle), fresh)
            if self._links[index]:
                self._ask(index, "links", partial(self._link_states, index, handle), fresh)
            self._slow[index] = fresh
        return values | self._slow[index]

    def _ask(self, index: int, name: str, query: Callable[[], dict[str, float]], into: dict[str, float]) -> bool:
        """Run one query unless it rests. True when the GPU turned out to be lost."""
        nvml, now = self._nvml, self._clock()
        if self._rests.get((index, name), 0.0) > now:
            return self._rests.get((index, "lost"), 0.0) > now
        try:
            into.update(query())
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                self._rests[index, "lost"] = self._rests[index, name] = now + REST
                return True
            never = error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            )
            self._rests[index, name] = NEVER if never else now + REST
        except (AttributeError, TypeError, ValueError):  # a binding older or newer than this code
            self._rests[index, name] = NEVER
        return False

    def _field_values(self, index: int, handle: Any) -> dict[str, float]:
        asked: list[tuple[str, float, Any]] = []
        for metric, constant, scale in FIELDS:
            if (index, metric) not in self._fields_off and hasattr(self._nvml, constant):
                asked.append((metric, scale, getattr(self._nvml, constant)))
        for metric, constant in LINK_FIELDS:
            if (index, metric) not in self._fields_off and hasattr(self._nvml, constant):
                field = getattr(self._nvml, constant)
                asked += [(metric, 1.0, (field, link)) for link in self._links[index]]
        values: dict[str, float] = {}
        answers = self._nvml.nvmlDeviceGetFieldValues(handle, [field for _, _, field in asked]) if asked else ()
        for (metric, scale, _), answer in zip(asked, answers, strict=True):
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS:
                raw = float(getattr(answer.value, _VALUE[answer.valueType]))
                values[metric] = values.get(metric, 0.0) + raw * scale
            elif answer.nvmlReturn in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_INVALID_ARGUMENT):
                self._fields_off.add((index, metric))
        return values

    def _link_states(self, index: int, handle: Any) -> dict[str, float]:
        states = [self._nvml.nvmlDeviceGetNvLinkState(handle, link) for link in self._links[index]]
        return {"nvlinks": float(len(states)), "nvlinks_down": float(states.count(self._nvml.NVML_FEATURE_DISABLED))}

    # --- what a worker's GPU does (gpu_use); NaN or empty where it is not reported; never raises

    def processes(self) -> dict[int, frozenset[int]]:
        """By GPU, the processes that compute on it, as this process knows them: none of another process namespace."""
        found = {}
        for index, handle in enumerate(self._handles if self.available else ()):
            listed = (
                self._call("nvmlDeviceGetComputeRunningProcesses", handle, default=()) if handle is not None else ()
            )
            found[index] = frozenset(int(process.pid) for process in listed)
        return found

    def power_limit_w(self, index: int) -> float:
        if index not in self._limits:
            milliwatts = self._call("nvmlDeviceGetEnforcedPowerLimit", self._handles[index])
            self._limits[index] = float("nan") if milliwatts is None else milliwatts / 1e3
        return self._limits[index]

    def pcie_bytes_s(self, index: int) -> float:
        """Both directions, over the 20 ms before."""
        counters = (self._nvml.NVML_PCIE_UTIL_TX_BYTES, self._nvml.NVML_PCIE_UTIL_RX_BYTES)
        rates = [self._call("nvmlDeviceGetPcieThroughput", self._handles[index], counter) for counter in counters]
        return float("nan") if None in rates else sum(rates) * 1024.0

    def link_bytes(self, index: int) -> float:
        """Over all NVLinks, both directions, since the driver was loaded."""
        names = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
        if not self._links[index] or not all(hasattr(self._nvml, name) for name in names):
            return float("nan")
        fields = [(getattr(self._nvml, name), _ALL_LINKS) for name in names]
        answers = self._call("nvmlDeviceGetFieldValues", self._handles[index], fields, default=())
        if len(answers) != len(fields) or any(one.nvmlReturn != self._nvml.NVML_SUCCESS for one in answers):
            return float("nan")
        return sum(float(getattr(one.value, _VALUE[one.valueType])) for one in answers) * 1024.0

    def poll_xids(self) -> list[Xid]:
        """Xids since the last call, repeats included; returns at once. Never raises."""
        found: list[Xid] = []
        nvml = self._nvml if self._event_set is not None else None
        for _ in range(MAX_EVENTS if nvml is not None else 0):
            assert nvml is not None
            try:
                data = nvml.nvmlEventSetWait_v2(self._event_set, 0)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    found.append(Xid(OFF_THE_BUS, "", str(error)))
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    self.events_available, self._event_set = False, None
                break
            if data.eventType == nvml.nvmlEventTypeXidCriticalError:
                uuid = self._call("nvmlDeviceGetUUID", data.device, default="")
                found.append(Xid(int(data.eventData), str(uuid)))
        return found

    def close(self) -> None:
        if self._event_set is not None:
            self._call("nvmlEventSetFree", self._event_set)
            self._event_set, self.events_available = None, False
        if self.available:
            self.available, self.absent_reason = False, "closed"
            self._call("nvmlShutdown")


# --- the queries, a row each


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100.0, "memory_utilization_ratio": rates.memory / 100.0}


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}


def _temperature(nvml: Any, handle: Any) -> dict[str, float]:
    return {"temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


def _power(nvml: Any, handle: Any) -> dict[str, float]:
    return {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def _sm_clock(nvml: Any, handle: Any) -> dict[str, float]:
    return {"sm_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6}


def _memory_clock(nvml: Any, handle: Any) -> dict[str, float]:
    return {"memory_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6}


def _throttle(nvml: Any, handle: Any) -> dict[str, float]:
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return {"clock_event_reasons": float(reasons), "hw_throttled": float(bool(reasons & HW_THROTTLE))}


def _ecc(kind: str, counter: str) -> Query:
    def query(nvml: Any, handle: Any) -> dict[str, float]:
        error_type = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}")
        counter_type = getattr(nvml, f"NVML_{counter.upper()}_ECC")
        errors = nvml.nvmlDeviceGetTotalEccErrors(handle, error_type, counter_type)
        return {f"ecc_{kind}_{counter}": float(errors)}

    return query


def _remapped(nvml: Any, handle: Any) -> dict[str, float]:
    names = ("corrected", "uncorrected", "pending", "failed")
    rows = nvml.nvmlDeviceGetRemappedRows(handle)
    return {f"remapped_rows_{name}": float(value) for name, value in zip(names, rows, strict=True)}


FAST: tuple[tuple[str, Query], ...] = (
    ("memory", _memory),
    ("utilization", _utilization),
    ("temperature", _temperature),
    ("power", _power),
    ("sm_clock", _sm_clock),
    ("memory_clock", _memory_clock),
    ("throttle", _throttle),
)
SLOW: tuple[tuple[str, Query], ...] = (
    *((f"ecc_{k}_{c}", _ecc(k, c)) for k in ("corrected", "uncorrected") for c in ("volatile", "aggregate")),
    ("remapped", _remapped),
)
