"""The command line and environment that /proc shows of this process, set anew.

A process that was forked shows those of its parent. Whoever looks for processes by either, as `pgrep` does and the
clean-up of a local cluster, would take it for the other one.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14  # linux/prctl.h
_NO_FILE = 0xFFFFFFFF
_shown: list[object] = []  # the memory that the kernel reads: it must stay


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start",
            "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


def show(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Needs no privilege. Raises OSError where the kernel was built without CONFIG_CHECKPOINT_RESTORE."""
    line = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    memory = ctypes.create_string_buffer(line + variables)
    start = ctypes.addressof(memory)
    end = start + len(line)
    stat = Path("/proc/self/stat").read_text()
    # proc(5), from field 3 on: fields 26 to 28 are the code and the stack, 45 to 47 the data and the heap.
    fields = stat[stat.rindex(")") + 2 :].split()
    start_code, end_code, start_stack, start_data, end_data, start_brk = map(int, (*fields[23:26], *fields[42:45]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_long]
    found = _Map(
        start_code, end_code, start_data, end_data, start_brk, libc.sbrk(0), start_stack, start, end, end,
        end + len(variables), 0, 0, _NO_FILE,
    )  # fmt: skip
    size, unused = ctypes.c_ulong(ctypes.sizeof(found)), ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(found), size, unused):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot set what /proc shows of this process: {os.strerror(error)}")
    _shown[:] = [memory]
