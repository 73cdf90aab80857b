"""Unix sockets in folders with long names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path to `name` in `folder` that a socket can be bound or connected to: through the folder's descriptor,
    because a socket's path may have 107 bytes and a folder's more. Raises OSError when there is no such folder."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)
