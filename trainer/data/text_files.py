"""Files of text as what they are: plain, compressed with gzip, rows of JSON, or a Parquet table.

What is none of these is refused: a model trained on the bytes of an archive learns nothing, and nobody notices.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from holdfast.trainer.settings.errors import ConfigError

_MAGIC = {
    b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"\x28\xb5\x2f\xfd": "Zstandard", b"PK\x03\x04": "a ZIP archive",
    b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"ARROW1": "Arrow", b"\x89HDF": "HDF5", b"\x93NUMPY": "NumPy",
    b"\x7fELF": "a program", b"\x89PNG": "a picture", b"%PDF": "PDF",
}  # fmt: skip
_PIECE = 1 << 20


def read_documents(path: Path, column: str, most: int) -> Iterator[bytes]:
    """The documents of a file: the whole of a text, each row of a table. About `most` bytes at most.

    Raises ConfigError for what is no text, OSError.
    """
    with open(path, "rb") as file:
        head = file.read(8)
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
        file.seek(0)
        name = path.name.removesuffix(".gz")
        if kind == "gzip":
            with gzip.GzipFile(fileobj=file) as whole:
                yield from _text(cast(IO[bytes], whole), path, name, column, most)
        elif kind == "Parquet":
            yield from _table(file, path, column, most)
        elif kind:
            raise ConfigError(f"data.path: {path} is {kind}, not text: leave it out with data.suffixes, or unpack it")
        else:
            yield from _text(file, path, name, column, most)


def _text(file: IO[bytes], path: Path, name: str, column: str, most: int) -> Iterator[bytes]:
    try:
        if name.endswith((".jsonl", ".ndjson")):
            yield from _rows(file, path, column, most)
        else:
            yield b"".join(_pieces(file, most))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"data.path: {path} is damaged: {error}") from None


def _pieces(file: IO[bytes], most: int) -> Iterator[bytes]:
    """What is packed may be a thousand times as large."""
    left = most
    while left > 0 and (piece := file.read(min(_PIECE, left))):
        left -= len(piece)
        yield piece


def _rows(file: IO[bytes], path: Path, column: str, most: int) -> Iterator[bytes]:
    total, number = 0, 0
    while total < most and (line := file.readline(most + 1)):
        number += 1
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"data.path: {path}, line {number}: not JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            known = ", ".join(map(str, list(row)[:8])) if isinstance(row, dict) else type(row).__name__
            raise ConfigError(f"data.column is {column!r}: line {number} of {path} has no such text, but {known}")
        text = row[column].encode(errors="replace")
        total += len(text)
        yield text


def _table(file: IO[bytes], path: Path, column: str, most: int) -> Iterator[bytes]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"data.path: {path} is Parquet: install holdfast[spans], which brings pyarrow") from None
    total = 0
    try:
        table = parquet.ParquetFile(file)
        if column not in table.schema_arrow.names:
            raise ConfigError(f"data.column is {column!r}: {path} has {', '.join(table.schema_arrow.names[:8])}")
        for batch in table.iter_batches(batch_size=256, columns=[column]):
            for value in batch.column(0).to_pylist():
                if total >= most:
                    return
                text = str("" if value is None else value).encode(errors="replace")
                total += len(text)
                yield text
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise ConfigError(f"data.path: {path} is damaged: {' '.join(str(error).split())[:200]}") from None
