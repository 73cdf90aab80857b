"""A notice: one matter that people are notified of, from its opening to its end. Pure."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.wire import types as t

LEVELS = (t.Severity.INFO, t.Severity.WARNING, t.Severity.CRITICAL)


class Stage(StrEnum):
    """What there is to say. A notice goes through them in this order and may leave some out."""

    FIRING = "firing"
    GIVEN_UP = "given-up"
    """The job is marked failed: firing until somebody acts."""
    RESOLVED = "resolved"


class Sent(NamedTuple):
    """The newest stage that a receiver has taken, and when (wall seconds)."""

    stage: str
    at: float


@dataclass(slots=True)
class Notice:
    """What identifies it never changes: receivers find the end of a matter by what its opening said."""

    key: str
    severity: t.Severity
    kind: str
    subject: str
    job: str
    """Id; empty where no job is concerned."""
    job_name: str
    opened: float
    title: str = ""
    text: str = ""
    more: str = ""
    """What the text ends with besides the incident's: of others like it."""
    stage: Stage = Stage.FIRING
    closed: float | None = None
    is_alert: bool = False
    """Nothing waits for its end: it is firing for a while, and its end is no news for a person."""
    is_digest: bool = False
    incident: str = ""
    """Id, for the link."""
    sent: dict[str, Sent] = field(default_factory=dict)
    """By receiver."""

    @property
    def labels(self) -> dict[str, str]:
        """Of `key`, `kind`, `subject`, `severity` and `job` only: they are the same for every stage."""
        return {
            "incident": self.key,
            "kind": self.kind,
            "subject": self.subject,
            "job": self.job_name,
        }

    def to_doc(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "Notice":
        """Whatever Exception for a document that is none of a notice."""
        known = {"severity": t.Severity(doc["severity"]), "stage": Stage(doc["stage"])}
        sent = {str(name): Sent(str(stage), float(at)) for name, (stage, at) in doc["sent"].items()}
        return cls(**{**doc, **known, "sent": sent})


@dataclass(frozen=True, slots=True)
class Traits:
    """How a kind of receiver wants its messages."""

    keeps_state: bool = False
    """It knows open matters and closes them itself: an end without an opening, and a digest, are nothing to it."""
    forgets: bool = False
    """It takes a matter for over that is not sent again in time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `resend`: until an open matter is sent again to a receiver that forgets. `remind`: until a job that
    was given up is sent again to the others."""

    resend: float = 60.0
    remind: float = 4 * 3600.0
    least: t.Severity = t.Severity.WARNING


def is_due(notice: Notice, sent: Sent | None, traits: Traits, pace: Pace, now: float, since: float = 0.0) -> bool:
    """Whether a receiver is to get this notice at the wall time `now`. `sent`: what it has taken of it so far.
    `since`: when it was first configured: what was over before is nothing to it."""
    if sent is None and notice.closed is not None and notice.closed < since:
        return False
    if notice.is_digest:
        return sent is None and not traits.keeps_state
    if LEVELS.index(notice.severity) < LEVELS.index(pace.least):
        return False
    if notice.stage is Stage.RESOLVED:
        if traits.keeps_state:
            return sent is not None and sent.stage != Stage.RESOLVED
        return sent is None or (sent.stage != Stage.RESOLVED and not notice.is_alert)
    if sent is None or sent.stage != notice.stage:
        return True
    if traits.forgets:
        return now - sent.at >= pace.resend
    return notice.stage is Stage.GIVEN_UP and now - sent.at >= pace.remind
