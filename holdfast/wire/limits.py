"""What of a decoded message a controller takes: values beyond `bounds` are left out, each counted by reason.

An agent clamps what its workers write before it sends; what still comes is of another version, or forged. The rest of
the message counts all the same: a node must not become silent because of one value. Pure.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast.base import bounds
from holdfast.base.errors import ProtocolError
from holdfast.wire import messages as msg
from holdfast.wire import span_rows
from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts

REASONS = (
    "message", "hello", "name", "worker", "step", "gauge", "device", "spans", "text", "foreign", "stale", "answer",
)  # fmt: skip
"""`message`: not decodable. `hello`: a stream that was refused. `name`: one refused because its node's name is taken.
`worker`, `step`, `gauge`, `device`, `spans`, `text`: what of a message was left out or cut. `foreign`: about ranks that
the node does not hold. `stale`: about a job or a generation that does not run. `answer`: to a command that the node was
not sent."""
Refused = dict[str, int]
"""How many of each reason were left out."""

_MAX_RANKS, _MAX_STEP, _MAX_SECONDS = bounds.MAX_RANKS, bounds.MAX_STEP, bounds.MAX_SECONDS
_MAX_TOKENS, _MAX_GPUS = bounds.MAX_TOKENS, bounds.MAX_GPUS
_MOST = 1e30
"""Of a gauge: far beyond any, and its products are still finite."""
_MAX_FLUSH = 100_000  # parts of spans in one message
_MAX_DATA = 8 << 20
_MAX_LOG = 1 << 20
_HEARTBEAT_INTERVAL = (0.01, 60.0)
_MAX_AHEAD_NS = 1 << 62


def admitted(message: msg.AgentMessage, refused: Refused) -> msg.AgentMessage:
    """The message as far as it may be believed; what was left out is added to `refused`. ProtocolError for a hello
    without a name that can be used."""
    match message:
        case t.Frame():
            return _frame(message, refused)
        case msg.Numbered():
            return dataclasses.replace(message, event=_event(message.event, refused))
        case msg.CommandResult():
            return _result(message, refused)
        case msg.LogChunk():
            return dataclasses.replace(message, text=_cut(message.text, refused, _MAX_LOG))
        case msg.Spans():
            return _spans(message, refused)
        case msg.Hello():
            return _hello(message, refused)
        case msg.ClockRequest() | msg.Piece():
            return message


def count(refused: Refused, reason: str, many: int = 1) -> None:
    refused[reason] = refused.get(reason, 0) + many


# --- frames ----------------------------------------------------------------------------------------------------


def _frame(f: t.Frame, refused: Refused) -> t.Frame:
    changed: dict[str, Any] = {}
    low, high = _HEARTBEAT_INTERVAL
    if not low <= f.heartbeat_interval <= high:
        count(refused, "gauge")
        changed["heartbeat_interval"] = (
            high if f.heartbeat_interval > high else low if f.heartbeat_interval < low else 0.25
        )
    if f.host and not _is_fine(f.host, bounds.MAX_GAUGES):
        changed["host"] = _gauges(f.host, bounds.MAX_GAUGES, refused)
    if len(f.nics) > bounds.MAX_NICS or any(len(nic.name) > bounds.MAX_NAME for nic in f.nics):
        nics = tuple(nic for nic in f.nics if len(nic.name) <= bounds.MAX_NAME)[: bounds.MAX_NICS]
        count(refused, "device", len(f.nics) - len(nics))
        changed["nics"] = nics
    if f.gpus and not all(g.index < _MAX_GPUS and _is_fine(g.values, bounds.MAX_NAME) for g in f.gpus):
        gpus = tuple(g for g in f.gpus if g.index < bounds.MAX_GPUS)[: bounds.MAX_GPUS]
        if len(gpus) < len(f.gpus):
            count(refused, "device", len(f.gpus) - len(gpus))
        changed["gpus"] = tuple(
            g
            if _is_fine(g.values, bounds.MAX_NAME)
            else t.GpuGauges(g.index, _gauges(g.values, bounds.MAX_NAME, refused))
            for g in gpus
        )
    if len(f.workers) > bounds.MAX_WORKERS or not all(map(_is_sane, f.workers)):
        workers = tuple(w if _is_sane(w) else _mended(w, refused) for w in f.workers if w.rank < bounds.MAX_RANKS)
        if len(workers) < len(f.workers) or len(workers) > bounds.MAX_WORKERS:
            count(refused, "worker", len(f.workers) - len(workers[: bounds.MAX_WORKERS]))
        changed["workers"] = workers[: bounds.MAX_WORKERS]
    if len(f.steps) > bounds.MAX_KEPT_STEPS or not all(map(_is_step, f.steps)):
        steps = tuple(record for record in f.steps if _is_step(record))[: bounds.MAX_KEPT_STEPS]
        if len(steps) < len(f.steps):
            count(refused, "step", len(f.steps) - len(steps))
            changed["steps"] = steps
    return dataclasses.replace(f, **changed) if changed else f


def _is_step(r: t.StepRecord) -> bool:
    return (
        r.rank < _MAX_RANKS
        and 0 <= r.step <= _MAX_STEP
        and 0 <= r.seconds <= _MAX_SECONDS  # NaN is not
        and 0 <= r.tokens <= _MAX_TOKENS
        and r.end_wall_ns <= _MAX_AHEAD_NS
    )


def _is_sane(w: t.WorkerSample) -> bool:
    """Of thousands a second: a value that differs from itself is NaN, which means unknown."""
    ages = w.operation_age, w.progress_age, w.tick_age, w.still_age, w.median_step
    return (
        w.rank < _MAX_RANKS
        and -1 <= w.step <= _MAX_STEP
        and w.pid <= bounds.MAX_PID
        and w.generation <= bounds.MAX_GENERATION
        and w.tokens <= bounds.MAX_COUNT
        and len(w.operation) <= bounds.MAX_NAME
        and all([0 <= age <= _MAX_SECONDS or age != age for age in ages])
        and ((w.sizes is None and w.coordinate is None) or bounds.is_place(w.coordinate, w.sizes))
        and (w.meters is None or _are_meters(w.meters))
        and (w.pending is None or _is_pending(w.pending))
        and (w.activity is None or _is_activity(w.activity))
        and (w.standing is None or _is_standing(w.standing))
    )


def _are_meters(m: t.Meters) -> bool:
    values = (m.mfu, m.tokens_per_s, *m.parts)
    is_known = m.memory_bytes <= bounds.MAX_COUNT and not (m.grad_norm < 0)
    return is_known and all([0 <= value <= _MOST or value != value for value in values])


def _is_pending(s: t.PendingCollective) -> bool:
    if len(s.kind) > bounds.MAX_NAME or not -1 <= s.number <= bounds.MAX_COUNT or not -1 <= s.group < len(s.groups):
        return False
    return len(s.groups) <= bounds.MAX_GROUPS and all(
        len(g.label) <= bounds.MAX_NAME and len(g.members) <= bounds.MAX_NAME and g.begun <= bounds.MAX_COUNT
        for g in s.groups
    )


def _is_activity(a: t.Activity) -> bool:
    values = [getattr(a, field.name) for field in dataclasses.fields(a)]
    texts = [value for value in values if isinstance(value, str)]
    known = [value for value in values if isinstance(value, float) and value == value]
    return (
        all(len(text) <= bounds.MAX_NAME for text in texts)
        and all(0 <= value <= _MOST for value in known)
        and a.events_pending <= bounds.MAX_COUNT
    )


def _is_standing(s: StallFacts) -> bool:
    return (
        len(s.threads) <= bounds.MAX_THREADS
        and len(s.operations) <= bounds.MAX_OPERATIONS
        and len(s.holder) <= bounds.MAX_NAME
        and all(
            x.tid <= bounds.MAX_PID
            and 0 <= x.seconds <= _MOST
            and (x.ends_in != x.ends_in or 0 <= x.ends_in <= _MOST)
            and len(x.words) <= bounds.MAX_NAME
            for x in s.threads
        )
        and all(
            len(o.kind) <= bounds.MAX_NAME and -1 <= o.root < _MAX_RANKS and 0 <= o.number <= bounds.MAX_COUNT
            for o in s.operations
        )
        and len(s.past) <= bounds.MAX_PAST
        and all(
            len(o.kind) <= bounds.MAX_NAME and -1 <= o.root < _MAX_RANKS and 0 <= o.number <= bounds.MAX_COUNT
            for o in s.past
        )
    )


def _mended(w: t.WorkerSample, refused: Refused) -> t.WorkerSample:
    """What can be kept of a worker: that it is there is news, too."""
    count(refused, "worker")
    is_placed = bounds.is_place(w.coordinate, w.sizes)
    return w._replace(
        generation=min(w.generation, bounds.MAX_GENERATION),
        pid=w.pid if w.pid <= bounds.MAX_PID else 0,
        step=bounds.whole(w.step, -1, bounds.MAX_STEP),
        tokens=bounds.whole(w.tokens, 0, bounds.MAX_COUNT),
        operation=w.operation[: bounds.MAX_NAME],
        operation_age=bounds.amount(w.operation_age),
        progress_age=bounds.amount(w.progress_age),
        tick_age=bounds.amount(w.tick_age),
        still_age=bounds.amount(w.still_age),
        median_step=bounds.amount(w.median_step),
        coordinate=w.coordinate if is_placed else None,
        sizes=w.sizes if is_placed else None,
        meters=w.meters if w.meters is not None and _are_meters(w.meters) else None,
        pending=w.pending if w.pending is not None and _is_pending(w.pending) else None,
        activity=w.activity if w.activity is not None and _is_activity(w.activity) else None,
        standing=w.standing if w.standing is not None and _is_standing(w.standing) else None,
    )


def _is_fine(values: Mapping[str, float], most: int) -> bool:
    return len(values) <= most and all(-_MOST <= v <= _MOST and len(k) <= bounds.MAX_NAME for k, v in values.items())


def _gauges(values: Mapping[str, float], most: int, refused: Refused) -> dict[str, float]:
    """A gauge that is no finite number says nothing."""
    kept = {k: v for k, v in values.items() if -_MOST <= v <= _MOST and len(k) <= bounds.MAX_NAME}
    kept = dict(sorted(kept.items())[:most]) if len(kept) > most else kept
    count(refused, "gauge", len(values) - len(kept))
    return kept


# --- all else --------------------------------------------------------------------------------------------------


def _cut(text: str, refused: Refused, most: int = bounds.MAX_LINE) -> str:
    if len(text) <= most:
        return text
    count(refused, "text")
    return text[:most]


def _name(text: str, refused: Refused) -> str:
    return _cut(text, refused, bounds.MAX_NAME)


def _event(event: t.Event, refused: Refused) -> t.Event:
    match event:
        case t.WorkerExited():
            error, tail = _cut(event.error, refused), _cut(event.tail, refused)
            return dataclasses.replace(event, error=error, tail=tail)
        case t.LogMatched():
            names: dict[str, Any] = {key: _name(getattr(event, key), refused) for key in ("rule", "kind", "device")}
            return dataclasses.replace(event, line=_cut(event.line, refused), **names)
        case t.AgentNotice():
            return dataclasses.replace(event, kind=_name(event.kind, refused), text=_cut(event.text, refused))
        case t.PlanPublished():
            return event
        case t.ProgressSeen():
            number, files = (
                bounds.whole(event.number, -1, bounds.MAX_STEP),
                bounds.whole(event.count, 0, bounds.MAX_COUNT),
            )
            if (number, files) != (event.number, event.count):
                count(refused, "step")
            text, source = _cut(event.text, refused), _cut(event.source, refused, 16)
            return dataclasses.replace(event, number=number, count=files, text=text, source=source)
        case t.ImportsTimed():
            seconds = bounds.amount(event.seconds) if event.seconds == event.seconds else 0.0
            if seconds != event.seconds:
                count(refused, "step")
            return dataclasses.replace(event, seconds=seconds, frameworks=_cut(event.frameworks, refused, 200))
        case t.StateRestored():
            step = bounds.whole(event.step, 0, bounds.MAX_STEP)
            size, sent = (bounds.whole(one, 0, bounds.MAX_COUNT) for one in (event.num_bytes, event.sent_bytes))
            seconds = bounds.amount(event.seconds) if event.seconds == event.seconds else 0.0
            if (step, size, sent, seconds) != (event.step, event.num_bytes, event.sent_bytes, event.seconds):
                count(refused, "step")
            source = _cut(event.source, refused, 16)
            return dataclasses.replace(
                event, step=step, num_bytes=size, sent_bytes=sent, seconds=seconds, source=source
            )


def _result(result: msg.CommandResult, refused: Refused) -> msg.CommandResult:
    data = {k: v for k, v in result.data.items() if len(k) <= bounds.MAX_NAME and len(v) <= _MAX_DATA}
    if len(data) < len(result.data):
        count(refused, "text", len(result.data) - len(data))
    return dataclasses.replace(result, error=_cut(result.error, refused), data=data)


def _spans(spans: msg.Spans, refused: Refused) -> msg.Spans:
    workers = tuple(w for w in spans.workers if _is_part(w))[:_MAX_FLUSH]
    if len(workers) < len(spans.workers):
        count(refused, "spans", len(spans.workers) - len(workers))
    dropped, error = min(spans.dropped, bounds.MAX_COUNT), min(spans.error_ns, bounds.MAX_COUNT)
    return dataclasses.replace(spans, workers=workers, dropped=dropped, error_ns=error)


def _is_part(w: msg.WorkerSpans) -> bool:
    return (
        w.rank < bounds.MAX_RANKS
        and w.generation <= bounds.MAX_GENERATION
        and w.count <= bounds.MAX_SPANS
        and w.lost <= 1 << 32
        and -1 <= w.first <= w.last <= bounds.MAX_SPAN_STEP
        and len(w.names) <= bounds.MAX_SPAN_NAMES
        and all(len(name) <= bounds.MAX_NAME for name in w.names)
        and len(w.data) <= w.count * span_rows.ROW.size + 1024  # what zlib can add to what it cannot pack
    )


def _hello(hello: msg.Hello, refused: Refused) -> msg.Hello:
    i = hello.identity
    if not i.node.isprintable() or len(i.node) > bounds.MAX_NAME or "/" in i.node:
        raise ProtocolError(
            f"hello: {i.node[:40]!r} is no name of a node: up to {bounds.MAX_NAME} printable characters"
        )
    if len(i.incarnation) > bounds.MAX_NAME:
        raise ProtocolError(f"hello: an incarnation of {len(i.incarnation)} characters; {bounds.MAX_NAME} are the most")
    texts: dict[str, Any] = {
        key: _name(getattr(i, key), refused) for key in ("hostname", "switch", "boot_id", "address")
    }
    gpus = tuple(_short(g, refused) for g in i.gpus if g.index < bounds.MAX_GPUS)[: bounds.MAX_GPUS]
    nics = tuple(_short(n, refused) for n in i.nics)[: bounds.MAX_NICS]
    if len(gpus) + len(nics) < len(i.gpus) + len(i.nics):
        count(refused, "device", len(i.gpus) + len(i.nics) - len(gpus) - len(nics))
    identity = dataclasses.replace(
        i,
        **texts,
        predecessors=tuple(_name(one, refused) for one in i.predecessors[-64:]),
        ips=tuple(_name(ip, refused) for ip in i.ips[:64]),
        pod=_short(i.pod, refused),
        gpus=gpus,
        nics=nics,
        versions={_name(k, refused): _name(v, refused) for k, v in list(i.versions.items())[:64]},
        slots=min(i.slots, bounds.MAX_WORKERS),
        memory_bytes=min(i.memory_bytes, bounds.MAX_COUNT),
        ping_port=i.ping_port if i.ping_port <= 65535 else 0,
    )
    workers = tuple(w for w in hello.workers if w.rank < bounds.MAX_RANKS and w.generation <= bounds.MAX_GENERATION)
    if len(workers) < len(hello.workers):
        count(refused, "worker", len(hello.workers) - len(workers))
    return dataclasses.replace(hello, identity=identity, workers=workers)


def _short(one: Any, refused: Refused) -> Any:
    """A device or a pod, its texts cut."""
    texts = {f.name: getattr(one, f.name) for f in dataclasses.fields(one)}
    long = {k: _name(v, refused) for k, v in texts.items() if isinstance(v, str) and len(v) > bounds.MAX_NAME}
    return dataclasses.replace(one, **long) if long else one
