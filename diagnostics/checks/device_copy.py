"""Copies between host and each GPU, pinned memory, and within the GPU's own memory."""

import importlib.util

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading
from holdfast.diagnostics.checks.gemm import has_gpu

_SIZE = 256 << 20
_COPIES = 8


def run(options: CheckOptions) -> CheckResult:
    if not has_gpu():
        return CheckResult("device-copy", unable="no NVIDIA GPU here")
    if importlib.util.find_spec("torch") is None:
        return CheckResult("device-copy", unable="needs torch")
    import torch

    if not torch.cuda.is_available():
        return CheckResult("device-copy", unable="torch here has no CUDA")
    readings: list[Reading] = []
    faults: list[CheckFault] = []
    for index in range(torch.cuda.device_count()):
        torch.cuda.set_device(index)  # events are recorded on the current device
        device = torch.device("cuda", index)
        host = (torch.arange(_SIZE // 4, dtype=torch.int32) * 2_654_435).pin_memory()
        back = torch.empty_like(host).pin_memory()
        there, twin = torch.empty_like(host, device=device), torch.empty_like(host, device=device)
        for metric, target, source, moved in (
            ("to_device", there, host, 1), ("on_device", twin, there, 2), ("to_host", back, twin, 1),
        ):  # fmt: skip
            target.copy_(source, non_blocking=True)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)
            begin.record()
            for _ in range(_COPIES):
                target.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize(device)
            seconds = begin.elapsed_time(end) / 1e3 / _COPIES
            readings.append(Reading(metric, moved * _SIZE / seconds, f"gpu{index}"))
        wrong = int((back != host).sum())
        if wrong:
            faults.append(CheckFault(f"{wrong} values changed in its memory", f"gpu{index}"))
    return CheckResult("device-copy", tuple(readings), tuple(faults))
