"""Trains until a file is there, and prints lines that the rules for logs would take a minute to read: one of 512 KiB,
and 1 MiB of them.

    one_long_line.py FILE
"""

import itertools
import os
import sys
import time

from holdfast.agent import probe

probe.attach()
probe.phase("train")
hostile = "NCCL WARN hdfs checkpoint rror "  # no rule, but each looks for one long
for n in itertools.count():
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
    probe.step(n, loss=1.0)
    if n == 5:
        print(hostile * ((512 << 10) // len(hostile)), flush=True)
    if n == 10:
        print((hostile * 120 + "\n") * ((1 << 20) // (120 * len(hostile))), flush=True)
        print("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", flush=True)
