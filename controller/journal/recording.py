"""What the controller was told and what it decided, as lines of JSON: enough to run it again.

A file has a section for each life of the controller: a line with what it began from, then a line for each event, with
its instant and with what came of it. What agents send is kept as it was on the wire.
"""

import base64
import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.json_text import encode
from holdfast.controller.brain.restore import Steps
from holdfast.controller.journal import recording_file
from holdfast.controller.state import events as e
from holdfast.controller.state.events import Action, BrainEvent
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Finding, Instant, Job, JobSpec, Options
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

Json = dict[str, Any]
_VERSION = 2
_READABLE = (1, 2)
"""1: texts and documents were of earlier wording and fields, so of records and log lines only the kind is compared."""
_PLAIN: Mapping[str, type[Any]] = {
    one.__name__: one
    for one in (
        e.AgentLeft, e.StopAsked, e.FaultAsked, e.CheckpointAsked, e.DiagnoseAsked, e.StacksAsked, e.CordonAsked,
        e.EvictAsked, e.Tick,
    )
}  # fmt: skip
REFUSED = "refused"
"""In place of actions: the event was a wish that cannot be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What a life of the controller began from."""

    boot: str
    options: Options
    entities: list[tuple[str, str, Json]]
    steps: Steps
    at: Instant
    version: int = _VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    line: int
    event: BrainEvent
    at: Instant
    did: list[str]


class Recorder:
    """Writes a recording, or goes on with one. OSError when the disk does not take it."""

    def __init__(self, path: Path, start: Start) -> None:
        self._file = recording_file.go_on(path)
        head = {
            "holdfast": _VERSION,
            "boot": start.boot,
            "options": dataclasses.asdict(start.options),
            "entities": start.entities,
            "steps": _packed_steps(start.steps),
            "at": [start.at.mono, start.at.wall],
        }
        self._write(head)

    def add(self, event: BrainEvent, at: Instant, did: Sequence[str]) -> None:
        self._write({"at": [at.mono, at.wall], "event": type(event).__name__, "data": _data(event), "did": list(did)})

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, doc: Json) -> None:
        # Python's JSON reads the NaN and the infinity that it writes: a step's loss may be one.
        self._file.write(json.dumps(doc, separators=(",", ":")).encode() + b"\n")


def did(actions: Iterable[Action]) -> list[str]:
    """Actions as lines to compare: what, of whom, and a checksum of the rest."""
    lines = []
    for action in actions:
        match action:
            case e.Send(node, command):
                order = type(command.order).__name__
                lines.append(f"send {node} {order} {command.id} generation {command.generation}")
            case e.Record(kind, id, doc):
                lines.append(f"record {kind} {id} {zlib.crc32(encode(doc)):08x}")
            case e.Say(name, fields):
                lines.append(f"say {name} {zlib.crc32(encode(fields)):08x}")
    return lines


def compared(lines: Sequence[str], version: int) -> list[str]:
    """What of these lines must be the same again in a recording of this version."""
    if version == _VERSION:
        return list(lines)
    return [line.rpartition(" ")[0] if line.startswith(("record ", "say ")) else line for line in lines]


def read(path: Path) -> Iterator[Start | Told]:
    """UsageError names the line that is not one of a recording. Where a life was cut off in a line, it is left out."""
    begun = False
    for number, line in enumerate(recording_file.lines(path), 1):
        try:
            doc = json.loads(line)
            one = _start(doc) if "holdfast" in doc else _told(number, doc)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, HoldfastError) as error:
            if begun and not line.endswith(b"\n"):
                continue
            raise UsageError(f"{path}, line {number}: not a line of a recording: {error}") from None
        if not begun and not isinstance(one, Start):
            raise UsageError(f"{path}: a recording begins with what the controller began from; this does not")
        begun = True
        yield one
    if not begun:
        raise UsageError(f"{path} is no recording: `holdfast controller --record FILE` writes one")


def _start(doc: Json) -> Start:
    version = doc["holdfast"]
    if version not in _READABLE:
        raise UsageError(f"written by another version of holdfast (recording {version}, ours {_VERSION})")
    options: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in doc["options"].items()}
    entities = [(str(kind), str(key), entity) for kind, key, entity in doc["entities"]]
    return Start(
        doc["boot"],
        Options(**options),
        entities,
        _steps(doc["steps"]),
        Instant(*doc["at"]),
        version,
    )


def _packed_steps(steps: Steps) -> Any:
    if isinstance(steps, Mapping):
        return {job: [dataclasses.asdict(row) for row in rows] for job, rows in steps.items()}
    return [dataclasses.asdict(row) for row in steps]


def _steps(doc: Any) -> Steps:
    """By job; in versions below 3 a list, of the newest job."""
    if isinstance(doc, dict):
        return {job: [StepRow(**row) for row in rows] for job, rows in doc.items()}
    return [StepRow(**row) for row in doc]


def _told(number: int, doc: Json) -> Told:
    return Told(number, _event(doc["event"], doc["data"]), Instant(*doc["at"]), doc["did"])


def _data(event: BrainEvent) -> Json:
    match event:
        case e.AgentJoined(hello):
            return {"wire": _packed(hello)}
        case e.FrameSeen(node, frame):
            return {"node": node, "wire": _packed(frame)}
        case e.EventSeen(node, one):
            return {"node": node, "wire": _packed(msg.Numbered(0, one))}
        case e.ResultSeen(node, result):
            return {"node": node, "wire": _packed(result)}
        case e.JobSubmitted(spec):
            return {"job": Job(spec).to_doc()}
        case e.Found(finding, job):
            return {"finding": dataclasses.asdict(finding), "job": job}
    return dataclasses.asdict(event)


def _event(kind: str, data: Json) -> BrainEvent:
    match kind:
        case "JobSubmitted":
            spec: JobSpec = Job.from_doc(data["job"]).spec
            return e.JobSubmitted(spec)
        case "Found":
            found = data["finding"]
            known = {"kind": t.FindingKind(found["kind"]), "severity": t.Severity(found["severity"])}
            return e.Found(Finding(**{**found, **known}), data.get("job", ""))
    if kind in _PLAIN:
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        event: BrainEvent = _PLAIN[kind](**plain)
        return event
    message = wire.decode_agent(base64.b64decode(data["wire"]))
    match kind, message:
        case "AgentJoined", msg.Hello():
            return e.AgentJoined(message)
        case "FrameSeen", t.Frame():
            return e.FrameSeen(data["node"], message)
        case "EventSeen", msg.Numbered():
            return e.EventSeen(data["node"], message.event)
        case "ResultSeen", msg.CommandResult():
            return e.ResultSeen(data["node"], message)
    raise UsageError(f"unknown event {kind!r}")


def _packed(message: msg.AgentMessage) -> str:
    return base64.b64encode(wire.encode_agent(message)).decode()
