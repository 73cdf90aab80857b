"""What the benchmarks share: figures of processes, medians, tables, a scratch folder in memory."""

import argparse
import importlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
Json = dict[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return made


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, in memory where the host has such a place."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name)


def wait_for(
    what: str,
    seconds: float,
    question: Callable[[], Any],
    every: float = 0.02,
    despite: tuple[type[Exception], ...] = (),
) -> Any:
    """The first true answer; errors of these kinds count as no answer yet. TimeoutError names `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(*despite):
            if answer := question():
                return answer
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {seconds:g} s")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of the process so far."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional set size of the process, MB (millions of bytes)."""
    found = {"Rss": 0.0, "Pss": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024 / 1e6
    return found["Rss"], found["Pss"]


def child_pids(pid: int) -> list[int]:
    """Its direct children."""
    return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in _children(task)]


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def quantile(values: Iterable[float], q: float) -> float:
    """The smallest value that at least a share `q` of all does not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns, as wide as they need to be."""
    cells = [[str(c) for c in head], *([_shown(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))


def _shown(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def finish(result: Json, as_json: bool, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The result, with what it was measured on: as a table for people, or as one object."""
    result |= {"machine": machine()}
    if as_json:
        print(json.dumps(result))
        return
    table(head, rows)
    print("on " + ", ".join(f"{name} {value}" for name, value in result["machine"].items()))


def machine() -> Json:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def get(address: str, path: str, timeout: float = 30.0) -> bytes:
    """The body behind a path of a controller's HTTP side."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}{path}", timeout=timeout) as answer:
        body: bytes = answer.read()
        return body


def post(address: str, path: str, body: Json) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), headers)
    with opener.open(request, timeout=30.0) as answer:
        return json.load(answer)


def end(process: "subprocess.Popen[Any]", seconds: float = 10.0) -> None:
    """Ask a process to end; make it, if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def from_tests(name: str) -> ModuleType:
    """One of the tests' own modules, as `agent.support.sysfs`: what stands for hardware is built once."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(f"tests.{name}")


def synthetic_sysfs(root: Path, devices: int) -> Path:
    """RDMA devices as the kernel lays them out, every counter there."""
    sysfs = from_tests("agent.support.sysfs").Sysfs(root)
    for n in range(devices):
        sysfs.rdma(f"mlx5_{n}", numa=n // 4)
    return root


def free_port() -> int:
    """A port on which no process listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
