"""What a process sets so that a CPU computes the same bits in each process and after a restart. Without torch."""

from __future__ import annotations

import os

VARIABLE = "MKL_CBWR"
"""Of oneMKL: which matrix products have the same bits from run to run."""


def fix_products() -> None:
    """Give matrix products of this process and its children the same bits wherever their operands lie in memory.

    By default some kernels of MKL sum in an order that depends on the alignment of the operands, and an allocator may
    align them otherwise after a restart: seen with float64 on an AMD EPYC with AVX-512. Nothing is changed if the
    environment has a value. Call it before the first matrix product: MKL reads the variable once, when it first
    computes, not when torch is imported. A forked process has what its parent's MKL has read.
    """
    os.environ.setdefault(VARIABLE, "AUTO")
