"""Limits of what a command line may ask for: a larger number is a typing error, refused before it costs memory."""

from holdfast.base.bounds import MAX_RANKS
from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_bytes
from holdfast.cli.common import output

LOCAL_NODES = 64
LOCAL_WORKERS = 256
"""On one machine each node is an agent with its helpers, about 150 MB, and each worker is another process."""

MOST_BYTES = 10**15


def size_of(option: str, text: str) -> int | None:
    """Bytes that an option asks for, None where it is not given."""
    if not text:
        return None
    try:
        size = parse_bytes(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} must be a size such as 80GB, not {text!r}") from None
    if not 0 <= size <= MOST_BYTES:
        raise UsageError(f"{option} must be at most {output.size(MOST_BYTES)}, not {text!r}")
    return size


def check_world(nodes: int, nproc: int) -> None:
    """UsageError for a job with more ranks than a controller takes."""
    if nodes * nproc > MAX_RANKS:
        raise UsageError(
            f"{nodes:,} nodes x {nproc:,} workers are {nodes * nproc:,} ranks: a job has {MAX_RANKS:,} at most; "
            "give fewer nodes or fewer workers a node"
        )


def check_local(nodes: int, nproc: int, spares: int = 0) -> None:
    """UsageError for a local cluster that no machine can run."""
    if nodes + spares > LOCAL_NODES:
        raise UsageError(
            f"{nodes + spares:,} nodes: a cluster on one machine has 1 to {LOCAL_NODES}, spares among them; give fewer "
            "nodes, or start agents on real hosts (`holdfast agent`)"
        )
    if nodes * nproc > LOCAL_WORKERS:
        raise UsageError(
            f"{nodes:,} nodes x {nproc:,} workers are {nodes * nproc:,} processes: a cluster on one machine has "
            f"{LOCAL_WORKERS} at most; give fewer workers a node"
        )
