"""Options of a check: from the controller as JSON, from a person as flags."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class CheckOptions:
    suite: str = "quick"
    """`full` measures longer."""
    polite: bool = False
    """Measure at ordinary priority: a job trains here."""
    folder: str = "/tmp"
    """Where the disk check writes."""
    role: str = ""
    """In a pair: `client` measures, `server` answers."""
    address: str = ""
    """Where the pair's server listens, or the group's first rank."""
    own: str = ""
    """This node's own address in a group."""
    port: int = 0
    session: str = ""
    """A word that both ends of a pair know: no other client is answered."""
    rdma: tuple[str, ...] = ()
    """RDMA devices to measure, in the order of the other end's."""
    rank: int = 0
    ranks: int = 0
    part: str = ""
    """What a group measures, if not its own switch: its figure's component."""
    sysfs: str = "/sys"

    @property
    def is_full(self) -> bool:
        return self.suite == "full"

    @property
    def root(self) -> Path:
        return Path(self.sysfs)


def parse_options(text: str, **more: Any) -> CheckOptions:
    """Raises UsageError unless it is a JSON object of the right types. Unknown keys are ignored, for later versions."""
    known: dict[str, Any] = {f.name: f.default for f in fields(CheckOptions)}
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError(f"{text!r} is not one")
        values = {k: tuple(v) if isinstance(known[k], tuple) else type(known[k])(v) for k, v in given.items()
                  if k in known}  # fmt: skip
    except (ValueError, TypeError) as error:
        raise UsageError(f"--options must be a JSON object with values of the right types: {error}") from None
    return CheckOptions(**(values | {k: v for k, v in more.items() if v}))
