"""A folder of text as one long memory-mapped row of tokens, prepared once and kept in a cache.

The cache key covers the listing (names, sizes, times) and the tokenizer, so changed text is never served
from old tokens. Files appear under their final name only when whole, and the index last; any number of
ranks may start at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.trainer.data.documents import Documents, DocumentSource, cache_folder, list_sources
from holdfast.trainer.data.shards import Shards, ShardWriter
from holdfast.trainer.data.tokens import SEPARATOR, Tokenizer, make, restored
from holdfast.trainer.settings.config import DataConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import vocab_of
from holdfast.trainer.telemetry.progress import ProgressBar

_VERSION = 3
_SHARD_BYTES = 256 << 20
"""Size at which a file of tokens is full and the next begins."""
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokens ready to be cut into samples."""

    tokens: Shards
    """One row, read-only, mapped from the cache."""
    vocab: int
    digest: int
    """CRC-32 over the tokens: equal on all ranks that train on the same text."""


def open_corpus(config: DataConfig) -> Corpus:
    """The tokens of the configured folder, from the cache if they are there.

    Raises ConfigError when the folder holds no text, or too little for one sample.
    """
    try:
        corpus = _open(config)
    except OSError as error:
        raise ConfigError(f"data: {error.filename}: {error.strerror}; set data.path or data.cache_dir") from None
    if len(corpus.tokens) <= config.seq_len:
        raise ConfigError(
            f"data.path {config.path or 'default'} holds {len(corpus.tokens)} tokens: "
            f"one sample needs more than data.seq_len = {config.seq_len}"
        )
    return corpus


def open_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer that the configured folder was cut with. Raises ConfigError."""
    if config.tokenizer == "bytes":
        return restored(config.tokenizer, "")
    open_corpus(config)
    index = cache_folder(config) / f"{_key(list_sources(config), config)}.json"
    return restored(config.tokenizer, json.loads(index.read_text())["model"])


def _open(config: DataConfig) -> Corpus:
    sources = list_sources(config)
    folder = cache_folder(config)
    key = _key(sources, config)
    corpus = _read(folder, key)
    if corpus is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock"):
            corpus = _read(folder, key)
            if corpus is None:
                _write(folder, key, Documents(config, sources), config.tokenizer)
                corpus = _read(folder, key)
    assert corpus is not None, f"{folder}/{key} vanished right after it was written"
    return corpus


def _key(sources: list[DocumentSource], config: DataConfig) -> str:
    text = json.dumps(
        [
            _VERSION,
            config.tokenizer,
            config.max_bytes,
            config.column,
            [(s.path, s.size, s.mtime_ns) for s in sources],
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(folder: Path, key: str) -> Corpus | None:
    """The cached corpus, None when it is not there or not whole."""
    try:
        index = json.loads((folder / f"{key}.json").read_text())
        if index["version"] != _VERSION:
            return None
        counts = index["shards"]
        paths = [_shard(folder, key, number) for number in range(len(counts))]
        return Corpus(Shards(paths, counts, index["dtype"]), index["vocab"], index["crc32"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _shard(folder: Path, key: str, number: int) -> Path:
    return folder / f"{key}-{number:05}.tokens"


def _write(folder: Path, key: str, documents: Documents, tokenizer: str) -> None:
    made = make(tokenizer, documents.read())
    dtype = np.dtype(np.uint8 if made.vocab <= 256 else np.uint16)
    end = np.array([SEPARATOR], dtype=dtype).tobytes()
    crc = files = 0
    shards = ShardWriter(lambda number: _shard(folder, key, number), dtype, _SHARD_BYTES)
    with shards, ProgressBar(f"tokenising {documents.name}", documents.size) as progress:
        for document in documents.read():
            piece = made.encode(document).astype(dtype, copy=False).tobytes() + end
            shards.write(piece)
            crc = zlib.crc32(piece, crc)
            files += 1
            progress.add(len(document))
    index = {
        "version": _VERSION,
        "tokenizer": tokenizer,
        "vocab": vocab_of(tokenizer),
        "dtype": dtype.name,
        "tokens": sum(shards.counts),
        "shards": shards.counts,
        "crc32": crc,
        "files": files,
        "model": made.describe(),
    }
    aside = folder / f"{key}.json.tmp"
    aside.write_text(json.dumps(index))
    os.replace(aside, folder / f"{key}.json")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the lock dies with its holder. Raises ConfigError after a long wait."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        give_up = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise ConfigError(f"{path}: another process holds it for {_WAIT_S:g} s") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)
