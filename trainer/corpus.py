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

from holdfast.trainer.config import DataConfig
from holdfast.trainer.errors import ConfigError
from holdfast.trainer.tokens import SEPARATOR, Tokenizer, Tokens, make, restored, vocab_of

_VERSION = 1
# Folders of the standard library that are tests of it, or not part of it.
_SKIPPED = {"__pycache__", "test", "tests", "site-packages", "dist-packages"}
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokens ready to be cut into samples."""

    tokens: Tokens
    """One row, read-only, mapped from the cache."""
    vocab: int
    digest: int
    """CRC-32 over the tokens: equal on all ranks that train on the same text."""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    path: str
    size: int
    mtime_ns: int


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
                _write(folder, key, sources, config.tokenizer)
                corpus = _read(folder, key)
    assert corpus is not None, f"{folder}/{key} vanished right after it was written"
    return corpus


def list_sources(config: DataConfig) -> list[_Source]:
    """The files to read, by name, up to data.max_bytes. Raises ConfigError when there are none."""
    if config.path:
        root, suffixes, skipped = Path(config.path).expanduser(), config.suffixes, {"__pycache__"}
        if not root.is_dir():
            raise ConfigError(f"data.path {config.path}: no such folder")
    else:
        root, suffixes, skipped = Path(os.__file__).parent, config.suffixes or (".py",), _SKIPPED
    found, total = [], 0
    for source in _walk(str(root), "", suffixes, skipped):
        if total >= config.max_bytes:
            break
        total += source.size
        found.append(source)
    if not found:
        what = f"files ending in {', '.join(suffixes)}" if suffixes else "files with text"
        raise ConfigError(f"data.path {root}: holds no {what}")
    return found


def cache_folder(config: DataConfig) -> Path:
    """Where the tokens of any corpus are kept."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "holdfast" / "tokens"


def _walk(root: str, below: str, suffixes: tuple[str, ...], skipped: set[str]) -> Iterator[_Source]:
    folders = []
    with os.scandir(os.path.join(root, below)) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            name = os.path.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skipped and not entry.name.startswith("."):
                    folders.append(name)
            elif entry.is_file() and (not suffixes or entry.name.endswith(suffixes)):
                stat = entry.stat()
                if stat.st_size:
                    yield _Source(name, entry.path, stat.st_size, stat.st_mtime_ns)
    for name in folders:
        yield from _walk(root, name, suffixes, skipped)


def _key(sources: list[_Source], config: DataConfig) -> str:
    text = json.dumps([_VERSION, config.tokenizer, config.max_bytes, [(s.path, s.size, s.mtime_ns) for s in sources]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(folder: Path, key: str) -> Corpus | None:
    """The cached corpus, None when it is not there or not whole."""
    try:
        index = json.loads((folder / f"{key}.json").read_text())
        path = folder / f"{key}.tokens"
        dtype = np.dtype(index["dtype"])
        if index["version"] != _VERSION or path.stat().st_size != index["tokens"] * dtype.itemsize:
            return None
        return Corpus(np.memmap(path, dtype=dtype, mode="r"), index["vocab"], index["crc32"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _write(folder: Path, key: str, sources: list[_Source], tokenizer: str) -> None:
    made = make(tokenizer, (Path(s.path).read_bytes() for s in sources))
    dtype = np.dtype(np.uint8 if made.vocab <= 256 else np.uint16)
    end = np.array([SEPARATOR], dtype=dtype).tobytes()
    count = crc = 0
    aside = folder / f"{key}.tokens.tmp"
    with open(aside, "wb") as out:
        for source in sources:
            piece = made.encode(Path(source.path).read_bytes()).astype(dtype, copy=False).tobytes() + end
            out.write(piece)
            crc = zlib.crc32(piece, crc)
            count += len(piece) // dtype.itemsize
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, folder / f"{key}.tokens")
    index = {
        "version": _VERSION,
        "tokenizer": tokenizer,
        "vocab": vocab_of(tokenizer),
        "dtype": dtype.name,
        "tokens": count,
        "crc32": crc,
        "files": len(sources),
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
