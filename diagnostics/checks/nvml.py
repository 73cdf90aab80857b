"""Health of the GPUs as their driver reports it."""

from typing import Any

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult

_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RECOVERY = {
    1: "reset the GPU", 2: "reboot the node", 3: "drain peer-to-peer traffic", 4: "drain and reset the GPU",
    5: "recover IMEX", 6: "reset the bus", 7: "reboot the system",
}  # fmt: skip
_THROTTLE = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}


def run(options: CheckOptions) -> CheckResult:
    try:
        import pynvml
    except ImportError:
        return CheckResult("nvml", unable="needs nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return CheckResult("nvml", unable=f"no NVIDIA driver here ({error})")
    try:
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            return CheckResult("nvml", unable="the driver sees no GPU")
        faults = [fault for index in range(count) for fault in inspect(pynvml, index)]
        return CheckResult("nvml", faults=tuple(faults), evidence={"gpus": count})
    finally:
        pynvml.nvmlShutdown()


def inspect(nvml: Any, index: int) -> list[CheckFault]:
    """Faults of one GPU. Unsupported counters are skipped."""
    name = f"gpu{index}"

    def ask(call: str, *args: Any) -> Any:
        try:
            return getattr(nvml, call)(*args)
        except (nvml.NVMLError, AttributeError):
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return [CheckFault(f"the driver cannot open it: {error}", name, action="reboot the node")]
    found = []
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    if rows is not None and rows[3]:
        found.append(CheckFault("a row of its memory could not be remapped", name, action="replace the GPU"))
    elif rows is not None and rows[2]:
        found.append(CheckFault("a remap of a row of its memory is pending", name, action="reset the GPU"))
    errors = ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)  # uncorrected, since the driver was loaded
    if errors:
        found.append(CheckFault(f"{errors} uncorrected memory errors since the driver was loaded", name,
                           action="reset the GPU; replace it if they recur"))  # fmt: skip
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
    slow = [text for bit, text in _THROTTLE.items() if reasons & bit]
    if slow:
        text = f"its clocks are throttled: {', '.join(slow)}"
        found.append(CheckFault(text, name, fatal=False, action="check cooling and power"))
    values = ask("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    action = int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else 0
    if action:
        wish = _RECOVERY.get(action, f"action {action}")
        found.append(CheckFault(f"the driver requests a recovery: {wish}", name, action=wish))
    return found + _links(ask, handle, name)


def _links(ask: Any, handle: Any, name: str) -> list[CheckFault]:
    """A link that exists and is off is broken; one that the GPU lacks is not supported, and None here."""
    off = [link for link in range(18) if ask("nvmlDeviceGetNvLinkState", handle, link) == 0]
    up = [link for link in range(18) if ask("nvmlDeviceGetNvLinkState", handle, link) == 1]
    if off and up:  # all off: no bridge is plugged in
        return [CheckFault(f"NVLinks {off} are off, {len(up)} are up", name, action="reset the GPU, then check NVLink")]
    return []
