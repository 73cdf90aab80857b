"""Errors for missing extras: one line with the extra to install."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.errors import UsageError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wraps the import of an extra's modules, and nothing else."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "holdfast":
            raise
        raise _missing(missing, extra) from None


def require(extra: str, *modules: str) -> None:
    """Check modules that other processes will import, without the import: torch takes seconds."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _missing(module, extra)


def _missing(module: str, extra: str) -> UsageError:
    return UsageError(f"this needs {module}: pip install 'holdfast[{extra}]'")
