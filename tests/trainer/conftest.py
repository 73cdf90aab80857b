"""The fixtures behind all tests with real ranks: one fork server for the whole session, and a tiny model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test modules are imported by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from forked import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    warm = Zygote()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder of text."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        lines = (f"line {i} of file {number}: {i * i % 97} sheep and {i % 7} goats\n" for i in range(200))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def tiny(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments for a model small enough for a test and large enough for pp=8, tp=8 and dp=8."""
    cache = tmp_path_factory.mktemp("cache")
    settings = {
        "model.layers": 8,
        "model.d_model": 32,
        "model.heads": 8,
        "data.seq_len": 16,
        "data.cache_dir": cache,
        "train.log_every": 0,
        "train.micro_batch_size": 1,
        "optim.warmup_steps": 5,
        "parallel.timeout_s": 200,
    }
    return ["--data", str(text), *(word for k, v in settings.items() for word in ("--set", f"{k}={v}"))]
