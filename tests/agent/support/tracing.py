"""A process that traces another one and does nothing more, as a debugger at its prompt does."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ATTACH, WALL = 16, 0x40000000
for tid in map(int, os.listdir(f"/proc/{sys.argv[1]}/task")):
    if libc.ptrace(ATTACH, tid, None, None):
        print("refused", flush=True)
        sys.exit()
    os.waitpid(tid, WALL)
print("traces", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def traced(pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """All threads of it are stopped and traced until the end. Skips the test where that is not allowed."""
    tracer = subprocess.Popen(
        [sys.executable, "-c", TRACER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    try:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"traces\n":
            pytest.skip("this user may trace no process")
        yield tracer
    finally:
        tracer.communicate(b"")
