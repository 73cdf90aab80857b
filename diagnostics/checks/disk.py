"""Write with fsync, read past the page cache, in the folder that the agent keeps its state in."""

import os
import tempfile
import time

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading

_BYTES = {False: 16 << 20, True: 256 << 20}
_CHUNK = 1 << 20
_SPARE = 4  # free room that must be left, in sizes of the file


def run(options: CheckOptions) -> CheckResult:
    size = _BYTES[options.is_full]
    try:
        room = os.statvfs(options.folder)
    except OSError as error:
        return CheckResult("disk", unable=f"{options.folder}: {error.strerror}")
    if room.f_bavail * room.f_frsize < _SPARE * size:
        return CheckResult("disk", unable=f"{options.folder} has less than {_SPARE * size >> 20} MiB free")
    chunk = os.urandom(_CHUNK)
    with tempfile.NamedTemporaryFile(dir=options.folder, prefix="holdfast-check-") as file:
        start = time.perf_counter()
        for _ in range(size // _CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        wrote = time.perf_counter() - start
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        differs, start, spent = 0, time.perf_counter(), 0.0
        for _ in range(size // _CHUNK):
            start = time.perf_counter()
            read = file.read(_CHUNK)
            spent += time.perf_counter() - start
            differs += read != chunk
    faults = (CheckFault(f"{differs} MiB differ between write and read"),) if differs else ()
    readings = (Reading("write", size / wrote), Reading("read", size / spent))
    return CheckResult("disk", readings, faults, evidence={"folder": options.folder, "bytes": size})
