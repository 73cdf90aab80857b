"""The text that a corpus is made of: the files of a folder, or a Hugging Face dataset that lies on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.files import expand
from holdfast.trainer.data.text_files import read_documents
from holdfast.trainer.settings.config import DataConfig
from holdfast.trainer.settings.errors import ConfigError

# Folders of the standard library that are tests of it, or not part of it.
_SKIPPED = {"__pycache__", "test", "tests", "site-packages", "dist-packages"}
_HF = "hf:"
_KINDS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".txt": "text", ".arrow": "arrow"}


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A file, as the listing sees it."""

    name: str
    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents come from, and the files that decide what they are."""

    config: DataConfig
    sources: list[DocumentSource]

    @property
    def name(self) -> str:
        return self.config.path or "the standard library"

    @property
    def size(self) -> int:
        """Bytes to read, roughly where they are packed."""
        return min(sum(source.size for source in self.sources), self.config.max_bytes)

    def read(self) -> Iterator[bytes]:
        """Each document, in an order that depends on nothing but the sources. Raises ConfigError, OSError."""
        if self.config.path.startswith(_HF):
            yield from _rows(self.config)
        else:
            left = self.config.max_bytes
            for source in self.sources:
                if left <= 0:
                    return
                # A plain file is read whole, as it was listed: only what is packed may be larger than its size.
                for document in read_documents(Path(source.path), self.config.column, max(left, source.size)):
                    left -= len(document)
                    yield document


def check_folder(config: DataConfig) -> None:
    """Raise ConfigError where data.path names a folder that is none. Reads nothing in it."""
    if not config.path or config.path.startswith(_HF):
        return
    if not _expanded(config.path, "data.path").is_dir():
        raise ConfigError(f"data.path {config.path}: no such folder")


def list_sources(config: DataConfig) -> list[DocumentSource]:
    """The files to read, by name, up to data.max_bytes. Raises ConfigError when there are none."""
    if config.path.startswith(_HF):
        return _dataset_files(config)
    if config.path:
        check_folder(config)
        root, suffixes, skipped = _expanded(config.path, "data.path"), config.suffixes, {"__pycache__"}
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
        return _expanded(config.cache_dir, "data.cache_dir")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(base, "XDG_CACHE_HOME") / "holdfast" / "tokens"


def _expanded(path: str, setting: str) -> Path:
    try:
        return expand(path)
    except ValueError as error:
        raise ConfigError(f"{setting} {path}: {error}") from None


def _walk(root: str, below: str, suffixes: tuple[str, ...], skipped: set[str]) -> Iterator[DocumentSource]:
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
                    yield DocumentSource(name, entry.path, stat.st_size, stat.st_mtime_ns)
    for name in folders:
        yield from _walk(root, name, suffixes, skipped)


def _dataset_files(config: DataConfig) -> list[DocumentSource]:
    path = _dataset_path(config)
    if path.is_dir():
        found = list(_walk(str(path), "", config.suffixes, {"__pycache__"}))
    elif path.is_file():
        found = [DocumentSource(path.name, str(path), path.stat().st_size, path.stat().st_mtime_ns)]
    else:
        raise ConfigError(f"data.path {config.path}: no such file or folder; only datasets on this machine are read")
    if not found:
        raise ConfigError(f"data.path {config.path}: holds no files")
    return found


def _dataset_path(config: DataConfig) -> Path:
    return _expanded(config.path.removeprefix(_HF), "data.path")


def _rows(config: DataConfig) -> Iterator[bytes]:
    """The texts of a dataset, row by row, up to data.max_bytes."""
    # Read when the library is imported: nothing is fetched, whatever a dataset's own files say.
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        os.environ.setdefault(name, "1")
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"data.path {config.path}: needs the datasets library: pip install datasets") from None
    try:
        table = _table(datasets, _dataset_path(config), config.suffixes, cache_folder(config) / "datasets")
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"data.path {config.path}: not a dataset that can be read: {reason}") from None
    if config.column not in table.column_names:
        known = ", ".join(table.column_names)
        raise ConfigError(f"data.column is {config.column!r}: the dataset has {known}")
    total = 0
    for row in table:
        if total >= config.max_bytes:
            return
        text = str(row[config.column]).encode(errors="replace")
        total += len(text)
        yield text


def _table(datasets: Any, path: Path, suffixes: tuple[str, ...], cache: Path) -> Any:
    """The dataset; of one with several splits, `train`."""
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        found = datasets.load_from_disk(str(path))
        return found["train"] if isinstance(found, datasets.DatasetDict) else found
    files = [str(path)] if path.is_file() else sorted(str(p) for p in path.rglob("*") if p.suffix in _KINDS)
    files = [name for name in files if not suffixes or name.endswith(suffixes)]
    kinds = {_KINDS.get(Path(name).suffix) for name in files}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if kind is None:
        raise ValueError(f"one kind of file out of {', '.join(_KINDS)} is read at a time")
    return datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(cache))
