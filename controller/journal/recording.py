"""What the controller received and what it decided, as lines of JSON: enough to replay it.

A file has a section for each run of the controller: a line with what it began from, then a line for each event, with
its instant and with what came of it. What agents send is kept as it was on the wire.
"""

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.json_text import encode
from holdfast.controller.brain.restore import Steps
from holdfast.controller.journal import recording_file
from holdfast.controller.journal.summary import UNKNOWN, IncidentSummary
from holdfast.controller.state import events as e
from holdfast.controller.state.events import Action, BrainEvent
from holdfast.controller.state.former_names import current
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Instant, Job, JobSpec, Options
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

Json = dict[str, Any]
_T = TypeVar("_T")
_VERSION = 5
_READABLE = (1, 2, 3, 4, 5)
"""1 and 2 have no summaries of incidents; 3 books no time in the queue; 4 does not record how long a node was away.
Documents of all of them have other fields: `compared` leaves the documents out, and with them when time was booked and
when a node was recorded, which decides nothing."""
_RECORD = re.compile(r"record (\S+) (.*?) ([0-9a-f]{8})(?: (\{.*\}))?")
_UNCOMPARED = ("record time ", "record node ")
_ONE_OF_A_KIND = ("plan",)
"""Entities of which there was one: their ids were chosen again."""
_PLAIN_EVENTS = (
    e.AgentLeft, e.StopRequested, e.RestartRequested, e.FaultRequested, e.CheckpointRequested, e.DiagnoseRequested,
    e.StacksRequested, e.CordonRequested, e.EvictRequested, e.StragglersSeen, e.PlanCompared,
    e.Tick,
)  # fmt: skip
REFUSED = "refused"
"""In place of actions: the event was a wish that cannot be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What a run of the controller began from."""

    boot: str
    options: Options
    entities: list[tuple[str, str, Json]]
    steps: Steps
    at: Instant
    version: int = _VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Reported:
    line: int
    event: BrainEvent
    at: Instant
    did: list[str]


class Recorder:
    """Writes a recording, or appends to one. OSError when the disk refuses it."""

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
    """Actions as lines to compare: what, the subject, a checksum of the rest, and of an incident its summary."""
    lines = []
    for action in actions:
        match action:
            case e.Send(node, command):
                order = type(command.order).__name__
                lines.append(f"send {node} {order} {command.id} generation {command.generation}")
            case e.Record(kind, id, doc):
                line = f"record {kind} {id} {zlib.crc32(encode(doc)):08x}"
                if kind == "incident":
                    line += " " + json.dumps(IncidentSummary.from_doc(doc).to_fields(), separators=(",", ":"))
                lines.append(line)
            case e.Say(name, fields):
                lines.append(f"say {name} {zlib.crc32(encode(fields)):08x}")
    return lines


def compared(lines: Sequence[str], version: int) -> list[str]:
    """What of these lines must be the same again in a recording of this version."""
    if version == _VERSION:
        return list(lines)
    return [_without_document(line) for line in lines if not line.startswith(_UNCOMPARED)]


def _without_document(line: str) -> str:
    if line.startswith("say "):
        return " ".join(line.split(" ")[:2])
    found = _RECORD.fullmatch(line)
    if found is None:
        return line
    return f"record {found[1]}" if found[1] in _ONE_OF_A_KIND else f"record {found[1]} {found[2]}"


def incident_records(lines: Iterable[str]) -> Iterator[tuple[str, str, IncidentSummary]]:
    """Id, checksum and summary of each record of an incident; the summary is UNKNOWN before version 3."""
    for found in filter(None, map(_RECORD.fullmatch, lines)):
        if found[1] == "incident":
            yield found[2], found[3], IncidentSummary.from_fields(json.loads(found[4])) if found[4] else UNKNOWN


def read(path: Path) -> Iterator[Start | Reported]:
    """UsageError names the line that is not one of a recording. Where a run was cut off in a line, it is left out."""
    begun = False
    for number, line in enumerate(recording_file.lines(path), 1):
        try:
            doc = json.loads(line)
            one = _start(doc) if "holdfast" in doc else _reported(number, doc)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, HoldfastError) as error:
            if begun and not line.endswith(b"\n"):
                continue
            raise UsageError(f"{path}, line {number}: not a line of a recording: {error}") from None
        if not begun and not isinstance(one, Start):
            raise UsageError(f"{path}: a recording begins with the initial state of the controller; this file does not")
        begun = True
        yield one
    if not begun:
        raise UsageError(f"{path} is not a recording: `holdfast controller --record FILE` writes one")


def _start(doc: Json) -> Start:
    version = doc["holdfast"]
    if version not in _READABLE:
        raise UsageError(f"written by another version of holdfast (recording {version}, ours {_VERSION})")
    entities = [(str(kind), str(key), entity) for kind, key, entity in doc["entities"]]
    return Start(
        doc["boot"],
        _filled(Options, doc["options"]),
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
        return {job: [_filled(StepRow, row) for row in rows] for job, rows in doc.items()}
    return [_filled(StepRow, row) for row in doc]


def _reported(number: int, doc: Json) -> Reported:
    did = [str(line) for line in doc["did"]]
    list(incident_records(did))  # a summary that is no JSON is an error of this line
    return Reported(number, _event(doc["event"], doc["data"]), Instant(*doc["at"]), did)


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
            spec = data["job"]["spec"]
            known = _known(JobSpec, {**spec, "program": _known(msg.Program, spec["program"])})
            return e.JobSubmitted(Job.from_doc({**data["job"], "spec": known}).spec)
        case "Found":
            found = data["finding"]
            enums = {"kind": t.FindingKind(found["kind"]), "severity": t.Severity(found["severity"])}
            return e.Found(_filled(Finding, {**found, **enums}), str(data.get("job", "")))
    plain = _PLAIN.get(_stem(kind))
    if plain is not None:
        event: BrainEvent = _filled(plain, data)
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


def _stem(event: str) -> str:
    """The name of an event without the suffix that some versions write otherwise: StopRequested is StopRequested."""
    return event.removesuffix("Asked").removesuffix("Requested")


_PLAIN: Mapping[str, type[Any]] = {_stem(one.__name__): one for one in _PLAIN_EVENTS}


def _known(cls: type[Any], data: Json) -> Json:
    """Without the fields that only other versions have; lists become tuples, as JSON has none."""
    names = {one.name for one in dataclasses.fields(cls)}
    data = current(data, {"tries": "restart_attempts"} if cls is Options else None)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in names}


def _filled(cls: type[_T], data: Json) -> _T:
    """A dataclass from its fields. One that is missing has its default; without a default it is empty."""
    values = _known(cls, data)
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]
        has_default = dataclasses.MISSING is not one.default or dataclasses.MISSING is not one.default_factory
        if one.name not in values and not has_default and callable(one.type):
            values[one.name] = one.type()
    return cls(**values)
