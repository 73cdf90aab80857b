"""What a check says: readings, faults, or why it could not run. Plain data, JSON on the way to the controller."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.base.errors import ProtocolError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured figure in the unit that the catalog gives its metric.

    `component`: the part that it is of, as "eth0" or "gpu3"; empty: the node. `bar`: what this very part must reach
    by its own hardware, as 0.9 of a link's rate; NaN where nothing says.
    """

    metric: str
    value: float
    component: str = ""
    bar: float = math.nan


@dataclass(frozen=True, slots=True)
class CheckFault:
    """A fact that needs no comparison: a wrong number, a pending row remap, a machine check in the kernel's log."""

    text: str
    component: str = ""
    fatal: bool = True
    """False: the node works on, but needs attention."""
    action: str = ""
    """What to do, where the check knows better than the catalog."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    readings: tuple[Reading, ...] = ()
    faults: tuple[CheckFault, ...] = ()
    unable: str = ""
    """Why it cannot run here, or beside readings why a part of it cannot. Not a pass."""
    error: str = ""
    """How it broke. Proof of a fault only where the same check went well on peers."""
    evidence: Json = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(_plain(asdict(self)), separators=(",", ":"))


def parse_result(text: str) -> CheckResult:
    """Parse one line of a check process. Raises ProtocolError when it is malformed."""
    try:
        doc = json.loads(text)
        return CheckResult(
            check=str(doc["check"]),
            readings=tuple(
                Reading(str(r["metric"]), _number(r["value"]), str(r["component"]), _number(r["bar"]))
                for r in doc["readings"]
            ),
            faults=tuple(
                CheckFault(str(f["text"]), str(f["component"]), bool(f["fatal"]), str(f["action"]))
                for f in doc["faults"]
            ),
            unable=str(doc["unable"]),
            error=str(doc["error"]),
            evidence=dict(doc["evidence"]),
            seconds=float(doc["seconds"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not the result of a check: {text[:80]!r} ({error})") from None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """JSON has no NaN; None stands for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
