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


# How much more is resident when a thread, and then the process itself, has written and freed blocks of 8 MB.
GROWS = """
import ctypes, os, sys, threading
from pathlib import Path
from holdfast.base.host_memory import keep_freed
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if not keep_freed(one_arena=sys.argv[1] == "one"):
    sys.exit(3)
def use():
    blocks = [libc.malloc(8 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
thread = threading.Thread(target=use)
thread.start()
thread.join()
use()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_what_a_thread_has_freed_serves_others() -> None:
    grown = {}
    for kind in ("each", "one"):
        done = subprocess.run([sys.executable, "-c", GROWS, kind], capture_output=True, text=True, timeout=60)
        if done.returncode == 3:
            pytest.skip("no glibc here")
        assert done.returncode == 0, done.stderr
        grown[kind] = int(done.stdout)
    assert grown["one"] < 40e6  # 32 MiB once
    assert grown["each"] > 60e6  # and twice
