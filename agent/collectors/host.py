"""The host's own gauges through psutil: processor, memory, disks, descriptors, clock."""

import ctypes
import os
from collections.abc import Callable, Sequence

import psutil

from holdfast.agent.collectors.files import read_text

_libc = ctypes.CDLL(None, use_errno=True)
_TIME_ERROR = 5  # adjtimex: the clock is not synchronised
_STA_UNSYNC = 0x40


class _Timex(ctypes.Structure):
    """The head of the kernel's `struct timex`; the rest only needs room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("_rest", ctypes.c_char * 256),
    )


def _clock() -> dict[str, float]:
    """One system call, no daemon asked: works whatever keeps the time. Modes 0 only reads."""
    timex = _Timex()
    state = _libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    synced = state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    return {"clock_synchronised": float(synced), "clock_max_error_seconds": timex.maxerror / 1e6}


def _cpu() -> dict[str, float]:
    one, five, fifteen = os.getloadavg()
    ratio = psutil.cpu_percent(interval=None) / 100.0
    return {"cpu_ratio": ratio, "load_1m": one, "load_5m": five, "load_15m": fifteen}


def _memory() -> dict[str, float]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "memory_used_bytes": float(memory.total - memory.available),
        "memory_total_bytes": float(memory.total),
        "swap_used_bytes": float(swap.used),
        "swap_total_bytes": float(swap.total),
    }


def memory_pressure(proc_root: str = "/proc") -> dict[str, float]:
    """The share of the last ten seconds in which every task waited for memory, where the kernel keeps such a count."""
    with open(f"{proc_root}/pressure/memory", encoding="ascii") as file:
        for line in file:
            kind, average, *_ = line.split()
            if kind == "full":
                return {"memory_pressure_ratio": float(average.removeprefix("avg10=")) / 100}
    return {}


def process_state(pid: int, proc_root: str = "/proc") -> str:
    """A process's state as the kernel's letter (R runs, S sleeps, D cannot be interrupted, Z is dead); "" if gone."""
    _, _, rest = read_text(f"{proc_root}/{pid}/stat").rpartition(") ")
    return rest[:1]


def _disk_io() -> dict[str, float]:
    counters = psutil.disk_io_counters(nowrap=False)
    if counters is None:
        return {}
    return {"disk_read_bytes": float(counters.read_bytes), "disk_written_bytes": float(counters.write_bytes)}


class HostCollector:
    """Gauges of the whole host under plain names (`memory_used_bytes`, `disk_free_bytes/<path>` ...)."""

    name = "host"
    available = True
    absent_reason = ""

    def __init__(self, paths: Sequence[str] = (), proc_root: str = "/proc", interval: float = 1.0) -> None:
        """`paths`: folders whose file systems are watched (state folder, working folder)."""
        self.interval = interval
        self._paths = tuple(dict.fromkeys(paths))
        self._proc = proc_root
        self._sources: dict[str, Callable[[], dict[str, float]]] = {
            "cpu": _cpu,
            "memory": _memory,
            "disk": self._disks,
            "disk-io": _disk_io,
            "descriptors": self._descriptors,
            "memory-pressure": lambda: memory_pressure(proc_root),
            "clock": _clock,
        }
        self.refused: dict[str, str] = {}
        """Source -> why it was given up."""
        self._failures = dict.fromkeys(self._sources, 0)

    def collect(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, source in self._sources.items():
            if name in self.refused:
                continue
            try:
                values |= source()
                self._failures[name] = 0
            except Exception as error:
                # psutil raises what a strange kernel makes it raise (KeyError, IndexError ...); three in a row
                # is no accident, and this source would fail each time.
                self._failures[name] += 1
                if self._failures[name] >= 3:
                    self.refused[name] = f"{type(error).__name__}: {error}"
        return values

    def _disks(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for path in self._paths:
            try:
                status = os.statvfs(path)
            except OSError:  # a folder may be made later, or be away for a while
                continue
            values[f"disk_free_bytes/{path}"] = float(status.f_bavail * status.f_frsize)
            values[f"disk_total_bytes/{path}"] = float(status.f_blocks * status.f_frsize)
            if status.f_files:
                values[f"disk_free_inodes/{path}"] = float(status.f_favail)
        return values

    def _descriptors(self) -> dict[str, float]:
        with open(f"{self._proc}/sys/fs/file-nr", encoding="ascii") as file:
            used, _, limit = file.read().split()
        return {"descriptors_used": float(used), "descriptors_limit": float(limit)}
