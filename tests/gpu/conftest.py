"""For tests on a real NVIDIA GPU. Without its driver each of them is skipped, and nothing of CUDA is imported.

python -m pytest tests/gpu -m slow -s
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = HERE / "scripts"
HAS_GPU = os.path.exists("/proc/driver/nvidia/version")

OneGpuHosts = Callable[[int], list[dict[str, str]]]
Start = Callable[..., "Child"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver"))


def one_gpu_environments(ranks: int) -> list[dict[str, str]]:
    """Of ranks that share a GPU under NCCL. It refuses two ranks with the same host and the same bus id: each rank
    gets a host id of its own, and they talk over sockets."""
    shared = {"LOCAL_RANK": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return [{**shared, "NCCL_HOSTID": f"pretended-host-{rank}"} for rank in range(ranks)]


@pytest.fixture
def one_gpu_hosts() -> OneGpuHosts:
    """`one_gpu_hosts(n)`: what to add to the environments of n ranks, each of a pretended host, on one GPU."""
    return one_gpu_environments


class Child:
    """A process whose output goes to a file. `says` waits for a text, `end` kills it and all of its session."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str]) -> None:
        self.path = folder / f"child-{time.monotonic_ns()}.out"
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=ROOT, start_new_session=True
            )
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        return self.path.read_text(errors="replace")

    def says(self, text: str, deadline_s: float = 40.0) -> None:
        deadline = time.monotonic() + deadline_s
        while True:
            has_ended = self.process.poll() is not None  # asked first: it may say so and end
            if text in self.output:
                return
            assert not has_ended, f"ended with {self.process.returncode}:\n{self.output[-4000:]}"
            assert time.monotonic() < deadline, f"not {text!r} within {deadline_s:g} s:\n{self.output[-4000:]}"
            time.sleep(0.02)

    def wait(self, deadline_s: float = 40.0) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {deadline_s:g} s:\n{self.output[-4000:]}") from None

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(*argv, **env)`: a Python child with these arguments; killed when the test ends."""
    children: list[Child] = []

    def one(*argv: str, env: dict[str, str] | None = None) -> Child:
        whole = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        children.append(Child([sys.executable, *argv], tmp_path, whole))
        return children[-1]

    yield one
    for child in children:
        child.end()
