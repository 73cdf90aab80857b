"""The summary of an incident for operators: stored in a recording beside the checksum of the incident's document."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class IncidentSummary:
    kind: str
    culprit: str = ""
    """The subject of the incident's cause: "rank3", "node1", "job"."""
    action: str = ""
    state: str = ""
    """Empty where it is unknown, as `life`."""
    life: str = ""
    """What the workers did, where that was measured: dead, busy or idle."""

    @classmethod
    def from_doc(cls, doc: Mapping[str, Any]) -> "IncidentSummary":
        """The summary of an incident's document; UNKNOWN if the document is none, or of an unknown version."""
        try:
            cause = doc["findings"][doc["root"]]
            evidence = cause.get("evidence") or {}
            return cls(
                kind=str(cause["kind"]),
                culprit=str(cause["subject"]),
                action=str(doc.get("action", "")),
                state=str(doc.get("state", "")),
                life=str(evidence.get("life", "")),
            )
        except (KeyError, IndexError, TypeError, AttributeError):
            return UNKNOWN

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "IncidentSummary":
        """Read what `to_fields` wrote: a missing field is empty, an unknown one is ignored."""
        known = {one.name: str(fields.get(one.name, "")) for one in dataclasses.fields(cls)}
        return cls(**known) if known["kind"] else UNKNOWN

    def to_fields(self) -> dict[str, str]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @property
    def is_known(self) -> bool:
        return self != UNKNOWN

    @property
    def text(self) -> str:
        """For example "worker-hang rank5 restart"."""
        return f"{self.kind} {self.culprit} {self.action or 'no action'}" if self.is_known else self.kind

    @property
    def details(self) -> str:
        """For example "worker-hang rank5 restart closed dead"."""
        return " ".join(filter(None, (self.text, self.state, self.life)))


UNKNOWN = IncidentSummary("unknown")
