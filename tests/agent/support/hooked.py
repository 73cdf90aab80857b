"""An unmodified script under the hooks, as a task of the fork server of tests/trainer/support/zygote.py."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from holdfast.agent import probe
from holdfast.agent.hooks import torch_hooks
from holdfast.agent.probe_file import layout as probe_layout


def hooked(folder: Path, script: str, args: list[str]) -> dict[str, Any]:
    """Run it to its end; what this rank recorded is in `probe-RANK` in the folder."""
    os.environ[probe_layout.ENV_PATH] = str(folder / f"probe-{os.environ['RANK']}")
    probe.attach()
    torch_hooks.install()
    sys.argv[1:] = args
    runpy.run_path(script, run_name="__main__")
    return {}
