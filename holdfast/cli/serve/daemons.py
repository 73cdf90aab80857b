"""The daemons' short way in: an agent must not keep the command line's machinery in memory for as long as it runs.

Flags are read here as typer would read them. Whatever is not certain to be right (a mistake, --help) goes the long way,
where it is explained.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.base import log
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load
from holdfast.base.service import gc_paused
from holdfast.base.settings import former_names
from holdfast.cli.common.extras import needs


def run_agent(config: AgentConfig) -> int:
    config.check()
    with needs("agent"), gc_paused():
        from holdfast.agent.app import run
    return run(config)


def run_controller(config: ControllerConfig) -> int:
    config.check()
    with needs("controller"), gc_paused():
        from holdfast.controller.app import run
    return run(config)


def find(words: Sequence[str]) -> Callable[[], int] | None:
    """What runs the daemon that these words of a command line ask for; None when they ask for anything else."""
    if not words or words[0] not in ("agent", "controller"):
        return None
    cls = AgentConfig if words[0] == "agent" else ControllerConfig
    flags = read_flags(cls, words[1:])
    return None if flags is None else partial(_start, cls, flags)


def read_flags(cls: type[Any], words: Sequence[str]) -> dict[str, str | bool] | None:
    """Values by field, "config" and "verbose" among them; None when a word is not plainly one of the flags."""
    texts = {f"--{f.name.replace('_', '-')}": f.name for f in fields(cls) if f.type not in (bool, "bool")}
    texts |= {f"--{was.replace('_', '-')}": was for was in former_names(cls)}
    texts["--config"] = "config"
    switches = {f"--{f.name.replace('_', '-')}": f.name for f in fields(cls) if f.type in (bool, "bool")}
    found: dict[str, str | bool] = {}
    left = list(words)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        if flag in texts:
            if not equals and not left:
                return None
            found[texts[flag]] = value if equals else left.pop(0)
        elif equals:
            return None
        elif flag in ("--verbose", "-v"):
            found["verbose"] = True
        elif flag in switches:
            found[switches[flag]] = True
        elif flag.startswith("--no-") and f"--{flag[5:]}" in switches:
            found[switches[f"--{flag[5:]}"]] = False
        else:
            return None
    return found


def _start(cls: type[Any], flags: dict[str, str | bool]) -> int:
    log.configure(verbose=bool(flags.pop("verbose", False)), daemon=True)
    file = flags.pop("config", None)
    config = load(cls, flags, file=None if file is None else Path(str(file)))
    if isinstance(config, AgentConfig):
        return run_agent(config)
    return run_controller(cast(ControllerConfig, config))
