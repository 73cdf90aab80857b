"""All-to-all within the node: NCCL over its GPUs, gloo between processes where there is none."""

import importlib.util
import json
import os
import socket
import subprocess
import sys

from holdfast.base.service import PARENT
from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckResult, Reading
from holdfast.diagnostics.checks.gemm import has_gpu

_SIZE = {"gloo": 16 << 20, "nccl": 1 << 30}  # bytes that each rank sends to all
_ITERATIONS = 5
_TIMEOUT_S = 45.0
_MOST_PROCESSES = 4


def run(options: CheckOptions) -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return CheckResult("all-to-all", unable="needs torch")
    backend, ranks = "gloo", max(2, min(_MOST_PROCESSES, os.cpu_count() or 1))
    if has_gpu():
        import torch

        backend, ranks = "nccl", torch.cuda.device_count()
        if ranks < 2:
            return CheckResult("all-to-all", unable=f"{ranks} GPU: no peer to exchange data with")
    rates, error = _measure(backend, ranks)
    if error:
        return CheckResult("all-to-all", error=error)
    return CheckResult("all-to-all", (Reading("busbw", min(rates)),), evidence={"backend": backend, "ranks": ranks})


def _measure(backend: str, ranks: int) -> tuple[list[float], str]:
    """Every rank's busbw; or what the first rank that failed said last."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    words = [sys.executable, "-P", "-m", "holdfast.diagnostics.measure.collective", "all_to_all", "--backend", backend]
    words += ["--meet", f"127.0.0.1:{port}", "--ranks", str(ranks), "--size", str(_SIZE[backend])]
    words += ["--iterations", str(_ITERATIONS)]
    env = {**os.environ, PARENT: str(os.getpid())}
    running = [
        subprocess.Popen(
            [*words, "--rank", str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for rank in range(ranks)
    ]
    rates: list[float] = []
    try:
        for process in running:
            out, err = process.communicate(timeout=_TIMEOUT_S)
            if process.returncode:
                return [], err.strip().rpartition("\n")[2][:300] or f"a rank ended with {process.returncode}"
            rates.append(float(json.loads(out)["busbw"]))
        return rates, ""
    except subprocess.TimeoutExpired:
        return [], f"no result in {_TIMEOUT_S:g} s"
    finally:
        for process in running:
            process.kill()
            process.communicate()
