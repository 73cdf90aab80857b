"""`holdfast run --share`: a job that may share its nodes with others."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_bytes
from holdfast.cli.job.launch import embedded

_MOST = 1 << 53


def parse_share(text: str, trainer_args: Sequence[str] | None) -> int:
    """Bytes that a worker uses at most; 0 for no text. `trainer_args`: of the embedded trainer; None: another program.

    UsageError for what is no size, and for a job whose workers do not go back through unlike shares of the layers.
    """
    if not text:
        return 0
    try:
        size = parse_bytes(text)
    except (ValueError, OverflowError):
        size = 0
    if not 1 <= size <= _MOST:
        raise UsageError(f"--share is {text[:40]!r}: write the most memory that a worker uses, such as 20GB")
    parts = 1 if trainer_args is None else embedded.partial_backward(trainer_args)
    if parts == 1:
        raise UsageError(
            "--share is for jobs with partial backward, whose replicas leave each other time on their devices: run "
            "-m holdfast.trainer with --set parallel.partial_backward=2 or more, or leave --share out"
        )
    return size
