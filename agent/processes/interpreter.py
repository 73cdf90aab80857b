"""How to start another Python interpreter that finds this very package, installed or not."""

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import holdfast


def command(module: str, *args: str) -> list[str]:
    """The command line for one of our modules. `-P`: without the current folder on the path, where any user's files
    may lie and a `types.py` would stand in for Python's."""
    return [sys.executable, "-P", "-m", module, *args]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with this package's folder at the end of PYTHONPATH, unless it is on it or where Python looks anyway."""
    root = str(Path(holdfast.__file__).resolve().parent.parent)
    path = env.get("PYTHONPATH", "")
    if root in (*site.getsitepackages(), site.getusersitepackages(), *path.split(os.pathsep)):
        return dict(env)
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [path, root]))}
