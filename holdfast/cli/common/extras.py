"""A command whose extra is not installed says which one to install, in one line."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.errors import UsageError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the import of what belongs to an extra, and nothing else."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "holdfast":
            raise
        raise _missing(missing, extra) from None


def require(extra: str, *modules: str) -> None:
    """For what other processes will import: looks only, since importing torch takes seconds."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _missing(module, extra)


def _missing(module: str, extra: str) -> UsageError:
    return UsageError(f"this needs {module}: pip install 'holdfast[{extra}]'")
