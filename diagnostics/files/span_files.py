"""Spans in Parquet files, which DuckDB and other readers read in place. Needs pyarrow, imported when first used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base import private
from holdfast.base.errors import ProtocolError, UsageError
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, concatenated, from_columns

_SHAPE = b"holdfast.job"
_NAMES = {"start": "start_ns", "end": "end_ns", "cpu": "cpu_ns"}
"""Of columns whose unit the file has to say."""


def is_available() -> bool:
    """Whether pyarrow is there."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def write(table: SpanTable, shape: JobShape, path: Path) -> int:
    """Write a file, whole or not at all; its size in bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {_NAMES.get(name, name): pa.array(getattr(table, name)) for name in COLUMNS}
    columns["kind"] = _dictionary(pa, table.kind, table.kinds)
    columns["group"] = _dictionary(pa, table.group, table.groups)
    numbers, ids = table.actions()
    columns["action"] = _dictionary(pa, numbers, ids)
    nodes = shape.nodes or ("",)
    columns["node"] = _dictionary(pa, np.minimum(table.rank // max(shape.nproc, 1), len(nodes) - 1), nodes)
    arrow = pa.table(columns).replace_schema_metadata({_SHAPE: shape.to_json().encode()})
    part = path.with_suffix(".part")
    with open(part, "wb", opener=private.opener) as file:
        pq.write_table(arrow, file, compression="zstd")
    os.replace(part, path)
    return path.stat().st_size


def read(path: Path, first: int = 0, last: int = 1 << 30) -> tuple[SpanTable, JobShape]:
    """Spans of the steps `first` to `last` in a file, or in all files of a folder; and the job of the newest file.

    UsageError where there are none, or no pyarrow to read them with.
    """
    if not is_available():
        raise UsageError("reading files of spans needs pyarrow: pip install 'holdfast[spans]'")
    try:
        is_there = path.exists()
    except OSError:  # a name that is too long
        is_there = False
    if not is_there:
        raise UsageError(f"no spans at {path}: name a job's folder, STATE_DIR/spans/JOB, or one .parquet file of it")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"no .parquet file in {path}: name a job's folder, STATE_DIR/spans/JOB")
    tables, shape = [], JobShape()
    for file in files:
        table, shape = _read_one(file, first, last)
        tables.append(table)
    return concatenated(tables), shape


def _read_one(file: Path, first: int, last: int) -> tuple[SpanTable, JobShape]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [_NAMES.get(name, name) for name in COLUMNS]
    try:
        arrow = pq.read_table(file, columns=wanted, filters=[("step", ">=", first), ("step", "<=", last)])
        shape = JobShape.from_json((arrow.schema.metadata or {}).get(_SHAPE, b"").decode())
    except (OSError, pa.ArrowException, ProtocolError, KeyError) as error:
        raise UsageError(f"{file} is not a file of spans of Holdfast: {str(error).splitlines()[0]}") from None
    values: dict[str, Any] = {}
    names: dict[str, tuple[str, ...]] = {}
    for name in COLUMNS:
        column = arrow.column(_NAMES.get(name, name))
        if name in ("kind", "group"):
            encoded = column.unify_dictionaries().combine_chunks()
            values[name] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int16)
            names[name] = tuple(encoded.dictionary.to_pylist())
        else:
            values[name] = column.to_numpy()
    return from_columns(values, names["kind"], names["group"]), shape


def _dictionary(pa: Any, numbers: Any, names: Any) -> Any:
    values = pa.array(list(names) or [""], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(numbers, np.int32)), values)
