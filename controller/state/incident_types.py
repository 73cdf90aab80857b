"""Is an incident that was read from the journal one that a controller can have written? Pure. See `doc_types`."""

import typing
from typing import Any, NotRequired, TypedDict

from holdfast.controller.state import doc_types


class _StackRow(TypedDict):
    depth: int
    ranks: str
    frame: str


class _Stacks(TypedDict):
    at: float
    job: NotRequired[str]
    generation: int
    missing: NotRequired[dict[str, str]]
    states: NotRequired[dict[str, str]]
    rows: list[_StackRow]


class _Evidence(TypedDict, total=False):
    """What decisions read of a finding's evidence. The rest is for operators: any JSON."""

    life: str
    reason: str
    step: float


def check_incident(incident: Any) -> None:
    """ValueError that names the first place of a `incidents.Incident` where a value is not of the type that it has."""
    doc_types.check(incident, "")
    if not 0 <= incident.root < len(incident.findings):
        raise ValueError(f"root cannot be {incident.root} of {len(incident.findings)} findings")
    for n, finding in enumerate(incident.findings):
        _check_dict(finding.evidence, _Evidence, f"findings[{n}].evidence")
    if incident.stacks is not None:
        _check_dict(incident.stacks, _Stacks, "stacks")
        for n, row in enumerate(incident.stacks["rows"]):
            _check_dict(row, _StackRow, f"stacks.rows[{n}]")


def _check_dict(value: Any, kind: Any, where: str) -> None:
    """The keys that the TypedDict names; others may be there. A nested TypedDict is the caller's to check."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} cannot be {value!r:.40}")
    for key, hint in typing.get_type_hints(kind).items():
        if key in value:
            origin = typing.get_origin(hint)
            doc_types.check_value(value[key], list[Any] if origin is list else hint, f"{where}.{key}")
        elif key in kind.__required_keys__:
            raise ValueError(f"{where} lacks {key}")
