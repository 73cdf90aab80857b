"""Matrix products whose right answer is known to the last bit.

Small integers: every sum stays below 2**24 (float32 counts exactly that far), so any order of adding, any number of
threads and any kernel give the same bits; a result that differs is wrong, not noise. Each product is compared with
the first, and the first with A(Bv) for an integer vector v without zeros, which a single wrong element cannot pass.
"""

import os
import time
from typing import Any

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading

_SIZE = 512  # on the CPU: 0.27 GFLOP, some milliseconds on one core
_GPU_SIZE = 8192
_WINDOW_S = 0.25  # longer than the period in which a limited group gets its share
_WINDOWS = {False: 4, True: 20}
_GPU_SECONDS = {False: 0.5, True: 5.0}
_MOST_REPORTED = 3


def run(options: CheckOptions) -> CheckResult:
    readings: list[Reading] = []
    faults: list[CheckFault] = []
    evidence: dict[str, Any] = {}
    unable = []
    try:
        _cpu(_WINDOWS[options.is_full], readings, faults, evidence)
    except ImportError as error:
        unable.append(f"CPU: needs numpy ({error})")
    if has_gpu():
        try:
            _gpus(_GPU_SECONDS[options.is_full], readings, faults, evidence)
        except ImportError as error:
            unable.append(f"GPUs: needs torch with CUDA ({error})")
    return CheckResult("gemm", tuple(readings), tuple(faults), "; ".join(unable), evidence=evidence)


def integers(size: int) -> tuple[Any, Any, Any]:
    """A, B (float32, from -4 to 4) and v (float64, from 1 to 4)."""
    import numpy as np

    i, k = np.arange(size).reshape(-1, 1), np.arange(size).reshape(1, -1)
    a = ((i * 7 + k * 3 + (i * k) % 5) % 9 - 4).astype(np.float32)
    b = ((i * 5 + k * 11 + (i * k) % 7) % 9 - 4).astype(np.float32)
    return a, b, (np.arange(size) % 4 + 1).astype(np.float64)


def wrong_rows(a: Any, b: Any, v: Any, product: Any) -> list[int]:
    """Rows in which a product is not the right one. Exact: all sums of integers below 2**53."""
    import numpy as np

    # Sums by einsum: the routine under test must not vouch for itself.
    right = np.einsum("ik,k->i", a.astype(np.float64), np.einsum("kj,j->k", b.astype(np.float64), v))
    found = np.einsum("ij,j->i", product.astype(np.float64), v)
    return [int(row) for row in np.flatnonzero(found != right)]


def _cpu(windows: int, readings: list[Reading], faults: list[CheckFault], evidence: dict[str, Any]) -> None:
    import numpy as np

    a, b, v = integers(_SIZE)
    first = np.matmul(a, b)
    _report_rows(wrong_rows(a, b, v, first), "cpu", faults)
    rates: list[float] = []
    products = 0
    while len(rates) < windows:
        start, before = time.perf_counter(), products
        while (spent := time.perf_counter() - start) < _WINDOW_S:
            product = np.matmul(a, b)
            products += 1
            if not np.array_equal(product, first) and len(faults) < _MOST_REPORTED:
                wrong = np.argwhere(product != first)
                faults.append(_mismatch("cpu", len(wrong), [int(x) for x in wrong[0]], products))
        rates.append(2.0 * _SIZE**3 * (products - before) / spent)
    # The best window: a moment's load of others passes, a processor that is throttled or shared for good does not.
    readings.append(Reading("flops", max(rates), "cpu"))
    evidence["cpu"] = {"products": products, "windows": rates, "load_1m": os.getloadavg()[0]}


def _gpus(seconds: float, readings: list[Reading], faults: list[CheckFault], evidence: dict[str, Any]) -> None:
    import torch

    if not torch.cuda.is_available():
        raise ImportError("this one has none")
    for index in range(torch.cuda.device_count()):
        torch.cuda.set_device(index)  # events are recorded on the current device
        device, name = torch.device("cuda", index), f"gpu{index}"
        i = torch.arange(_GPU_SIZE, device=device)
        a = ((i[:, None] * 7 + i[None, :] * 3) % 9 - 4).to(torch.bfloat16)
        b = ((i[:, None] * 5 + i[None, :] * 11) % 9 - 4).to(torch.bfloat16)
        v = (i % 4 + 1).to(torch.float64)
        # bfloat16 holds each factor exactly, but not the sums: what comes back is compared in float32.
        first = a.float() @ b.float()
        right = a.double() @ (b.double() @ v)
        _report_rows(
            [int(r) for r in torch.nonzero(first.double() @ v != right).flatten()[:_MOST_REPORTED]], name, faults
        )
        rounded = a @ b
        torch.cuda.synchronize(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        products, spent, differ = 0, 0.0, 0
        while spent < seconds:
            begin.record()
            for _ in range(10):
                product = a @ b
            end.record()
            torch.cuda.synchronize(device)
            spent += begin.elapsed_time(end) / 1e3
            products += 10
            differ = int((product != rounded).sum())
            if differ:
                at = [int(x) for x in torch.nonzero(product != rounded)[0]]
                faults.append(_mismatch(name, differ, at, products))
                break
        readings.append(Reading("flops", 2.0 * _GPU_SIZE**3 * products / spent, name))
        evidence[name] = {"products": products, "device": torch.cuda.get_device_name(index)}


def _report_rows(rows: list[int], component: str, faults: list[CheckFault]) -> None:
    if rows:
        text = f"a matrix product is wrong in {len(rows)} rows, the first of them {rows[0]}"
        faults.append(CheckFault(text, component))


def _mismatch(component: str, count: int, at: list[int], product: int) -> CheckFault:
    text = f"the same product gave other bits: {count} elements differ, the first at {at}, in attempt {product}"
    return CheckFault(text, component)


def has_gpu() -> bool:
    """Is an NVIDIA driver loaded? Asked without importing torch, which takes a second."""
    return os.path.exists("/proc/driver/nvidia/version")
