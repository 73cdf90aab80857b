"""Memory freed by one step is available to the next one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# How far the heap's end moves back when 20 MB are freed.
SHRINKS = """
import ctypes, sys
from holdfast.base.host_memory import keep_freed
libc = ctypes.CDLL(None)
for function, result, takes in ((libc.sbrk, "p", "l"), (libc.malloc, "p", "L"), (libc.free, None, "p")):
    of = {"p": ctypes.c_void_p, "l": ctypes.c_long, "L": ctypes.c_size_t, None: None}
    function.restype, function.argtypes = of[result], [of[takes]]
if sys.argv[1] == "keep" and not keep_freed():
    sys.exit(3)
blocks = [libc.malloc(100_000) for _ in range(200)]
before = libc.sbrk(0)
for block in blocks:
    libc.free(block)
print(before - libc.sbrk(0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_the_heap_does_not_shrink() -> None:
    shrunk = {}
    for kind in ("plain", "keep"):
        done = subprocess.run([sys.executable, "-c", SHRINKS, kind], capture_output=True, text=True, timeout=60)
        if done.returncode == 3:
            pytest.skip("no glibc here")
        assert done.returncode == 0, done.stderr
        shrunk[kind] = int(done.stdout)
    assert shrunk["keep"] == 0
    assert shrunk["plain"] > 1e6
