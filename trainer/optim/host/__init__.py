"""Optimizer states in host memory, and the update of a bucket at a time on the device (AxoNN, IPDPS 2022)."""
