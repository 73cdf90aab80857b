"""Faults that a host, its GPUs, its links or its drivers show in gauges and in the kernel log."""
