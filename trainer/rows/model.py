"""Counted FLOPs and pairs against MegaScale's table and a count of every pair. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

# Megatron-LM's rows of MegaScale's table 2: GPUs, samples in a step, seconds of a step, MFU in percent.
TABLE = (
    (256, 768, 40.0, 53.0), (512, 768, 21.2, 49.9), (768, 768, 15.2, 46.7), (1024, 768, 11.9, 44.7),
    (3072, 6144, 29.02, 48.7), (6144, 6144, 14.78, 47.8), (8192, 6144, 12.24, 43.3), (12288, 6144, 8.57, 41.2),
)  # fmt: skip
A100 = 312e12


def mfu() -> Iterator[Row]:
    from holdfast.plan.transformer import paper_flops

    for gpus, samples, seconds, expected in TABLE:
        flops = paper_flops(layers=96, width=12288, length=2048, vocab=64000, samples=samples)
        yield Row(f"175B on {gpus:,} GPUs, %", expected, 100 * flops / (seconds * gpus * A100), 0.2)


def window() -> Iterator[Row]:
    from holdfast.plan.transformer import score_pairs

    for length, width in ((64, 16), (33, 7), (16, 16)):
        pairs = sum(0 <= i - j < width for i in range(length) for j in range(length))
        yield Row(f"pairs, {length} tokens, window {width}", pairs, score_pairs(length, width))
