"""Decisive checks of what happens inside a layer: its kernels, and transfers beside its products."""
