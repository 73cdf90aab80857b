"""Sees the files of state that an unmodified script writes: by torch.save, safetensors, NumPy or pickle.

torch.distributed.checkpoint goes through torch.save. Nothing is looked at but the name of the file.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.agent import observations
from holdfast.agent.hooks.imports import when_imported

_SAVERS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "torch.serialization": (("save",), 1, "f"),
    "safetensors.torch": (("save_file",), 1, "filename"),
    "numpy": (("save", "savez", "savez_compressed"), 0, "file"),
    "pickle": (("dump",), 1, "file"),
}
"""By module: functions, and which argument is the file."""
_OF_ANY_KIND = ("numpy", "pickle")
"""Modules that write files of any kind: theirs are state only where the path says that it is a checkpoint."""


def watch() -> None:
    """Install for what is imported already, and for what the script will import."""
    for name in _SAVERS:
        when_imported(name, _watch)


def _watch(module: ModuleType) -> None:
    names, position, keyword = _SAVERS[module.__name__]
    is_sure = module.__name__ not in _OF_ANY_KIND
    for name in names:
        if (save := getattr(module, name, None)) is None:
            continue  # of a module that is only half imported, or of another version
        watched = _watched(save, position, keyword, is_sure)
        watched.__module__ = module.__name__  # where pickle finds it, should a script pickle the function
        setattr(module, name, watched)
        if module.__name__ == "torch.serialization":
            sys.modules["torch"].save = watched  # type: ignore[attr-defined]


def _watched(save: Callable[..., Any], position: int, keyword: str, is_sure: bool) -> Callable[..., Any]:
    @functools.wraps(save)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = save(*args, **kwargs)
        observations.save(args[position] if len(args) > position else kwargs.get(keyword), is_sure)
        return result

    return watched
