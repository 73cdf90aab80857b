"""What speaks against a node: kept while it is away, and by the journal beyond the controller's own life."""

from dataclasses import dataclass, field
from typing import Any

from holdfast import types as t

KEPT = 50
"""Offences remembered of one node."""


@dataclass(slots=True)
class History:
    cordoned: bool = False
    evicted: str = ""
    """Why it was taken out; empty when it was not."""
    evicted_at: float = 0.0
    """Wall time of that, if it was our own decision."""
    tested_at: float = 0.0
    """Wall time of the last diagnosis that an incident asked for. Not kept beyond the controller's life."""
    barred: bool = False
    """Not even taken when nothing else is there: it failed a test, or people said so."""
    offences: list[tuple[float, str]] = field(default_factory=list)
    """(wall, kind of finding) of the faults that began on this node and count against it."""

    def offend(self, kind: t.FindingKind, wall: float) -> None:
        self.offences = [*self.offences, (wall, kind.value)][-KEPT:]

    def recent(self, wall: float, window: float) -> int:
        """Offences of the last `window` seconds."""
        return sum(at > wall - window for at, _ in self.offences)

    def evict(self, reason: str, wall: float, barred: bool) -> None:
        self.evicted, self.evicted_at, self.barred = reason, wall, self.barred or barred

    def pardon(self) -> None:
        """People looked at it: it begins anew."""
        self.cordoned, self.evicted, self.evicted_at, self.barred, self.offences = False, "", 0.0, False, []

    def to_doc(self) -> dict[str, Any]:
        return {
            "cordoned": self.cordoned,
            "evicted": self.evicted,
            "evicted_at": self.evicted_at,
            "barred": self.barred,
            "offences": [list(offence) for offence in self.offences],
        }

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "History":
        offences = [(float(at), str(kind)) for at, kind in doc.get("offences", ())]
        evicted, at = str(doc.get("evicted", "")), float(doc.get("evicted_at", 0.0))
        return cls(bool(doc["cordoned"]), evicted, at, barred=bool(doc.get("barred")), offences=offences)
