"""The table of findings: what each kind is called, what it means, what is done about it first, its limits, and what the
operator changed of them.

The rows are data (`findings.toml`), read by the detectors, by the policy and by the documentation.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeVar

from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest, parse_seconds
from holdfast.controller.detectors.base.moves import Fault, Move
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


class Response(StrEnum):
    """What a detector's findings lead to."""

    ACT = "act"
    """The policy decides: restart, watch, evict, or alert."""
    ALERT = "alert"
    """An alert, and nothing is done."""
    ROLL_BACK = "roll-back"
    """The job goes back to a checkpoint from before it: for spikes only."""
    OFF = "off"
    """Nothing is said at all."""


SPIKES = (t.FindingKind.LOSS_SPIKE, t.FindingKind.GRADIENT_SPIKE)


class Suspect(StrEnum):
    """What a finding puts under suspicion."""

    NODE = "node"
    LINK = "link"
    PROGRAM = "program"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Limit:
    default: float
    text: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    kind: t.FindingKind
    severity: t.Severity
    first_move: Move
    fault: Fault
    suspect: Suspect
    means: str
    does: str
    you: str
    fixed: bool
    limits: Mapping[str, Limit]


_KEYS = frozenset({"severity", "first_move", "fault", "suspect", "fixed", "means", "does", "you", "limits"})
_E = TypeVar("_E", bound=StrEnum)


def parse(text: str) -> Mapping[t.FindingKind, FindingRow]:
    """The rows of a `findings.toml`, in its order. ValueError names the section and what is wrong with it."""
    sections = tomllib.loads(text)
    kinds = {kind.value for kind in t.FindingKind}
    if wrong := sections.keys() ^ kinds:
        problems = [f"[{name}] is {'missing' if name in kinds else 'no kind of finding'}" for name in sorted(wrong)]
        raise ValueError(f"findings.toml: {', '.join(problems)}")
    return MappingProxyType({t.FindingKind(name): _row(t.FindingKind(name), entry) for name, entry in sections.items()})


def _row(kind: t.FindingKind, entry: Mapping[str, Any]) -> FindingRow:
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"findings.toml: [{kind}] has unknown keys: {', '.join(unknown)}")
    return FindingRow(
        kind=kind,
        severity=_word(t.Severity, kind, entry, "severity"),
        first_move=_word(Move, kind, entry, "first_move"),
        fault=_word(Fault, kind, entry, "fault"),
        suspect=_word(Suspect, kind, entry, "suspect"),
        means=_text(kind, entry, "means"),
        does=_text(kind, entry, "does"),
        you=_text(kind, entry, "you"),
        fixed=bool(entry.get("fixed", False)),
        limits={name: Limit(float(limit["default"]), limit["text"]) for name, limit in entry.get("limits", {}).items()},
    )


def _text(kind: t.FindingKind, entry: Mapping[str, Any], key: str) -> str:
    if key not in entry:
        raise ValueError(f"findings.toml: [{kind}] lacks {key}")
    return " ".join(str(entry[key]).split())


def _word(words: type[_E], kind: t.FindingKind, entry: Mapping[str, Any], key: str) -> _E:
    word = _text(kind, entry, key)
    if word not in set(words):
        raise ValueError(f"findings.toml: [{kind}] {key} must be one of {', '.join(words)}, not {word!r}")
    return words(word)


# Read when imported: an error in the file must not wait for the first finding.
_ROWS = parse(resources.files("holdfast.controller.detectors.base").joinpath("findings.toml").read_text("utf-8"))


def rows() -> Mapping[t.FindingKind, FindingRow]:
    """All kinds, in the order of the file."""
    return _ROWS


_RENAMED = {"straggler.looks": "windows"}
"""Limits by their names in earlier releases."""


class Tuning:
    """The limits and responses in force: those of the table, and what the operator set."""

    def __init__(self, settings: Iterable[str] = ()) -> None:
        """`settings`: "KIND.action=alert" or "KIND.LIMIT=VALUE", later ones win. UsageError names what is wrong."""
        self._limits = {kind: {name: limit.default for name, limit in r.limits.items()} for kind, r in rows().items()}
        self._responses = dict.fromkeys(rows(), Response.ACT)
        for setting in settings:
            self._set(setting)

    def limit(self, kind: t.FindingKind, name: str) -> float:
        return self._limits[kind][name]

    def limits(self, kind: t.FindingKind) -> Mapping[str, float]:
        return self._limits[kind]

    def response(self, kind: t.FindingKind) -> Response:
        return self._responses[kind]

    def _set(self, setting: str) -> None:
        where = f"detectors: {setting!r}"
        path, _, value = setting.partition("=")
        name, _, key = path.strip().partition(".")
        if not value.strip() or not key:
            raise UsageError(f"{where} is not a setting: write KIND.action=alert or KIND.LIMIT=VALUE")
        try:
            row = rows()[t.FindingKind(name)]
        except (ValueError, KeyError):
            raise UsageError(f"{where}: unknown detector {name!r}{nearest(name, list(rows()))}") from None
        if key == "action":
            self._responses[row.kind] = _response(row, value.strip(), where)
            return
        key = _RENAMED.get(path.strip(), key)
        if key not in row.limits:
            raise UsageError(f"{where}: unknown key {key!r}{nearest(key, ['action', *row.limits])}")
        self._limits[row.kind][key] = _number(key, value, where)


def _response(row: FindingRow, value: str, where: str) -> Response:
    if value not in set(Response) or (value == Response.ROLL_BACK and row.kind not in SPIKES):
        choices = "act, alert, roll-back or off" if row.kind in SPIKES else "act, alert or off"
        raise UsageError(f"{where}: action must be {choices}, not {value!r}")
    if row.fixed and value != Response.ACT:
        raise UsageError(f"{where}: {row.kind} is a fact, not a suspicion: it cannot be silenced")
    return Response(value)


def _number(key: str, value: str, where: str) -> float:
    try:
        number = parse_seconds(value) if key.endswith("seconds") else float(value)
    except ValueError:
        raise UsageError(f"{where}: not a number: {value!r}") from None
    if not 0 <= number < float("inf"):
        raise UsageError(f"{where}: must be 0 or more, not {value!r}")
    return number


def finding(
    kind: t.FindingKind,
    subject: str,
    text: str,
    now: Instant,
    *,
    seconds: float = 0.0,
    severity: t.Severity | None = None,
    node: str = "",
    rank: int = -1,
    signature: str = "",
    evidence: Mapping[str, object] = MappingProxyType({}),
) -> Finding:
    """A finding of a kind with the severity of its row, if no other is given. `seconds`: how long it went on before
    it was found."""
    return Finding(
        kind=kind,
        severity=severity or rows()[kind].severity,
        subject=subject,
        text=text,
        since=now.wall - seconds,
        at=now.wall,
        node=node,
        rank=rank,
        signature=signature or kind.value,
        evidence=dict(evidence),
    )
