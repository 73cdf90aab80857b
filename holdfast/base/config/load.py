"""Settings from flags, environment and `holdfast.toml`.

One file has a section for each part. Every field is also `HOLDFAST_SECTION_FIELD` and a flag; the text under it is the
help of that flag.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.client import ClientConfig, DemoConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.errors import UsageError
from holdfast.base.files import expand
from holdfast.base.settings import load as load_section

T = TypeVar("T")

SECTIONS: Mapping[str, type[Any]] = {
    "controller": ControllerConfig,
    "agent": AgentConfig,
    "client": ClientConfig,
    "demo": DemoConfig,
}


def find_file(env: Mapping[str, str]) -> Path | None:
    """The file to read without --config: HOLDFAST_CONFIG (empty: none), the current folder, /etc."""
    if "HOLDFAST_CONFIG" in env:
        try:
            return expand(env["HOLDFAST_CONFIG"]) if env["HOLDFAST_CONFIG"] else None
        except ValueError as error:
            raise UsageError(f"HOLDFAST_CONFIG: {error}") from None
    places = (Path("holdfast.toml"), Path("/etc/holdfast/holdfast.toml"))
    return next((place for place in places if place.is_file()), None)


def load(
    cls: type[T],
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> T:
    """A section's settings, e.g. `load(AgentConfig, {"slots": "4"})`. UsageError names what is wrong and where."""
    env = os.environ if env is None else env
    file = find_file(env) if file is None else file
    return load_section(cls, flags=flags or {}, env=env, file=file, sections=SECTIONS)
