"""Copy bandwidth of the host's memory: bytes read plus bytes written per second, one thread."""

import time

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckResult, Reading

_BYTES = 64 << 20  # well beyond the last cache of most processors
_COPIES = {False: 8, True: 60}


def run(options: CheckOptions) -> CheckResult:
    source, target = bytearray(_BYTES), bytearray(_BYTES)
    source[::4096] = b"\1" * len(source[::4096])  # else all pages are the one of zeros
    target[:] = source
    copies = _COPIES[options.is_full]
    start = time.perf_counter()
    for _ in range(copies):
        target[:] = source
    seconds = time.perf_counter() - start
    return CheckResult("memory", (Reading("bandwidth", 2 * copies * _BYTES / seconds),))
