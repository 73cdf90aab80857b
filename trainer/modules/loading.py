"""The user's function: found, called, and what it returns looked at. Everything that can go wrong is one line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base.plain import one_line
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.own_module import parted


def find(build: str) -> Callable[[], Any]:
    """The function of a module.build. Raises ConfigError."""
    where, name = parted(build)
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _imported(where)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module.build = {build}: {where} cannot be imported ({_named(error)})") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"module.build = {build}: {where} has no {name}; its function returns your nn.Module")
    if not callable(found):
        raise ConfigError(f"module.build = {build}: {name} is {type(found).__name__}, not a function that returns one")
    function: Callable[[], Any] = found
    return function


def make(build: str, seed: int, dtype: torch.dtype, device: str = "cpu") -> nn.Module:
    """The module, in training mode, with initial weights that depend on the seed alone. Raises ConfigError."""
    function = find(build)
    try:
        with torch.random.fork_rng([]), torch.device(device):
            torch.manual_seed(seed)
            module = function()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module.build = {build}: the function raised {_named(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"module.build = {build}: the function returned {type(module).__name__}, not an nn.Module")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"module.build = {build}: the module has no parameter to train")
    return module.to(dtype).train()


def logits_of(output: Any) -> Tensor:
    """What a module returns for training. Raises TypeError for anything else."""
    found = output
    if isinstance(output, dict):
        found = output.get("logits")
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(f"its forward returns {type(output).__name__} without logits")
    return found


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:  # a program does not look where it was started, `python -m` does
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"module.build: no such file {path}, seen from {os.getcwd()}; name a file of Python")
    name = f"own_{path.stem}"  # not the stem: a file may be called torch.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # for what lies beside it, as for a script
    spec.loader.exec_module(module)
    return module


def _named(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return one_line(f"{type(error).__name__}: {text}"[:300]).removesuffix(": ")
