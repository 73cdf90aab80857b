"""Text to tokens to samples: cached safely, and a function of seed and position only."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.data.batches import Batches, permuted
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.data.documents import list_sources
from holdfast.trainer.settings.config import DataConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.telemetry.garbage import gc_disabled
from holdfast.trainer.telemetry.progress import ProgressBar


def config(text: Path, tmp_path: Path, **more: object) -> DataConfig:
    return DataConfig(path=str(text), cache_dir=str(tmp_path / "cache"), **more)  # type: ignore[arg-type]


@given(size=st.integers(1, 300), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_each_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(i, size, seed, epoch) for i in range(size)) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permuted(i, 50, seed, epoch) for i in range(50)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@given(micro_batches=st.integers(1, 6), size=st.integers(1, 3), start=st.integers(0, 40), seed=st.integers(0, 99))
def test_samples_do_not_depend_on_where_a_run_began(micro_batches: int, size: int, start: int, seed: int) -> None:
    batches = Batches(np.arange(200, dtype=np.uint8), 3, seed, micro_batches, size)
    per_step = micro_batches * size
    # All samples of the steps so far are whole epochs, then distinct samples of the current one.
    seen = [s for step in range(start) for m in range(micro_batches) for s in batches.samples(step, m)]
    assert len(seen) == start * per_step
    counts = np.bincount(seen, minlength=batches.num_samples)
    assert counts.max() - counts.min() <= 1
    # Read at once or micro-batch by micro-batch: the same rows.
    x, y = batches.read(start, range(micro_batches))
    parts = [batches.read(start, range(m, m + 1)) for m in range(micro_batches)]
    assert (x == np.concatenate([p[0] for p in parts])).all()
    assert (y[:, :-1] == x[:, 1:]).all()
    assert x.shape == (per_step, 3)


def test_bytes_with_separators(text: Path, tmp_path: Path) -> None:
    corpus = open_corpus(config(text, tmp_path))
    whole = b"".join(p.read_bytes() + b"\0" for p in sorted(text.iterdir()))
    assert corpus.tokens[:].tobytes() == whole
    assert corpus.vocab == 256


def test_byte_pairs_are_fewer_and_come_back(text: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    corpus = open_corpus(config(text, tmp_path, tokenizer="bpe:400"))
    assert corpus.vocab == 400
    assert corpus.tokens[:].max() < 400
    (index,) = (tmp_path / "cache").glob("*.json")
    decoder = tokenizers.Tokenizer.from_str(json.loads(index.read_text())["model"])
    first, *_ = np.split(corpus.tokens[:], np.flatnonzero(corpus.tokens[:] == 0))
    assert decoder.decode(first.tolist()).encode() == (text / "0.txt").read_bytes()
    assert len(first) < (text / "0.txt").stat().st_size / 2


def test_the_cache_is_used_and_follows_changes(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("x" * 500)
    ours = config(folder, tmp_path)
    first = open_corpus(ours)
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    assert open_corpus(ours).digest == first.digest
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    (folder / "a.txt").write_text("y" * 500)
    assert open_corpus(ours).digest != first.digest


def test_a_truncated_cache_is_made_anew(text: Path, tmp_path: Path) -> None:
    ours = config(text, tmp_path)
    digest = open_corpus(ours).digest
    (tokens,) = (tmp_path / "cache").glob("*.tokens")
    os.truncate(tokens, 10)
    again = open_corpus(ours)
    assert again.digest == digest
    assert len(again.tokens) > 10


def test_many_processes_may_start_at_once(text: Path, tmp_path: Path) -> None:
    code = (
        "from holdfast.trainer.data.corpus import *; from holdfast.trainer.settings.config import DataConfig;"
        f"print(open_corpus(DataConfig(path={str(text)!r}, cache_dir={str(tmp_path)!r})).digest)"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({p.communicate(timeout=240)[0] for p in started}) == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_default_is_the_standard_library() -> None:
    names = [source.name for source in list_sources(DataConfig())]
    assert "argparse.py" in names
    assert not any("site-packages" in n or n.startswith("test/") for n in names)


def test_too_little_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(ConfigError, match=r"holds 6 tokens.*seq_len = 64"):
        open_corpus(config(tmp_path, tmp_path / "c"))
    with pytest.raises(ConfigError, match=r"holds no files ending in \.rst"):
        list_sources(DataConfig(path=str(tmp_path), suffixes=(".rst",)))


def test_max_bytes_stops_reading(text: Path) -> None:
    assert len(list_sources(DataConfig(path=str(text), max_bytes=1))) == 1


def test_large_text_fills_several_files(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_corpus(config(text, tmp_path))
    monkeypatch.setattr("holdfast.trainer.data.corpus._SHARD_BYTES", 10_000)
    parts = open_corpus(DataConfig(path=str(text), cache_dir=str(tmp_path / "other")))
    assert len(parts.tokens.paths) > 1
    assert max(parts.tokens.counts) <= 10_000
    assert parts.digest == whole.digest
    assert (parts.tokens[:] == whole.tokens[:]).all()


def test_progress_is_a_line_for_every_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.trainer.telemetry.progress._QUIET_S", 0.0)
    out = io.StringIO()
    with ProgressBar("tokenising x", 2_000_000, out) as progress:
        for _ in range(1000):
            progress.add(2000)
    lines = out.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == [f"{5 * n}%" for n in range(1, 21)]
    assert lines[0].startswith("tokenising x: 5% of 2.0 MB, ")


def test_progress_of_a_moment_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.trainer.telemetry.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with ProgressBar("tokenising x", 10, out) as progress:
        now[0] += 0.99
        progress.add(5)
        assert out.getvalue() == ""
        now[0] += 0.02
        progress.add(5)
    assert out.getvalue().startswith("tokenising x: 100% of ")


def test_progress_at_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.trainer.telemetry.progress._QUIET_S", 0.0)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with ProgressBar("tokenising x", 10, out) as progress:
        progress.add(5)
    assert "tokenising x" in out.getvalue()
    assert "MB/s" not in out.getvalue()


@pytest.mark.filterwarnings("ignore")  # the library's own, of its many parts
def test_a_local_dataset_is_a_source(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [f"row {n}: {'x' * n}" for n in range(50)]
    whole = b"".join(row.encode() + b"\0" for row in rows)
    lines = [json.dumps({"text": row, "other": n}) + "\n" for n, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    table = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "hf")
    )
    table.save_to_disk(str(tmp_path / "saved"))
    for name in ("saved", "rows.jsonl"):
        ours = DataConfig(path=f"hf:{tmp_path / name}", cache_dir=str(tmp_path / "cache"))
        assert open_corpus(ours).tokens[:].tobytes() == whole
    wrong = DataConfig(path=f"hf:{tmp_path / 'saved'}", column="body", cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=r"data\.column is 'body': the dataset has text, other"):
        open_corpus(wrong)
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ConfigError, match="not a dataset that can be read"):
        open_corpus(DataConfig(path=f"hf:{tmp_path / 'bad.parquet'}", cache_dir=str(tmp_path / "cache")))


def test_a_dataset_needs_its_library_and_must_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="only datasets on this machine are read"):
        open_corpus(DataConfig(path="hf:some/name", cache_dir=str(tmp_path)))
    (tmp_path / "rows.parquet").write_text("x")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="needs the datasets library: pip install datasets"):
        open_corpus(DataConfig(path=f"hf:{tmp_path / 'rows.parquet'}", cache_dir=str(tmp_path / "cache")))


def test_garbage_waits_for_its_step() -> None:
    collected: list[str] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    with gc_disabled(3) as collect:
        gc.callbacks.append(watch)
        try:
            for done in range(1, 8):
                for _ in range(2000):
                    knot: list[object] = []
                    knot.append(knot)
                    del knot
                collect(done)
                assert collected.count("stop") == done // 3
        finally:
            gc.callbacks.remove(watch)
    assert gc.isenabled()
    with gc_disabled(0) as collect:
        assert gc.isenabled()
        collect(3)
