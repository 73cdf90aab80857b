"""Types to messages and back: total, both ways, tested by round trip. The only module that knows the messages.

`decode_*` raise ProtocolError on what cannot be a message of ours; unknown fields are ignored by protobuf itself.
"""

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast import types as t
from holdfast.errors import ProtocolError
from holdfast.proto import controller_pb2 as c
from holdfast.proto import types_pb2 as p

_M = TypeVar("_M", bound=Message)

PROTOCOL = 1
"""What this version speaks; a peer whose range does not hold it is refused in one line."""

_EVENT_FIELDS: dict[str, type[t.Event]] = {
    "worker_exited": t.WorkerExited,
    "log_matched": t.LogMatched,
    "notice": t.AgentNotice,
    "plan_published": t.PlanPublished,
    "state_restored": t.StateRestored,
}


# --- agent -> controller ---------------------------------------------------------------------------------------


def encode_agent(message: t.AgentMessage) -> bytes:
    return agent_message(message).SerializeToString()


def agent_message(message: t.AgentMessage) -> c.AgentMessage:
    match message:
        case t.Frame():
            return c.AgentMessage(frame=_frame(message))
        case t.Numbered():
            return c.AgentMessage(event=_event(message))
        case t.CommandResult():
            return c.AgentMessage(
                result=c.CommandResult(id=message.id, ok=message.ok, error=message.error, data=message.data)
            )
        case t.LogChunk():
            return c.AgentMessage(log=c.LogChunk(**_fields(message)))
        case t.Hello():
            return c.AgentMessage(hello=_hello(message))
        case t.Spans():
            workers = [c.WorkerSpans(**_fields(w)) for w in message.workers]
            return c.AgentMessage(spans=c.Spans(**_fields(message) | {"workers": workers}))
        case t.ClockAsked():
            return c.AgentMessage(clock_asked=c.ClockAsked(sent_ns=message.sent_ns))


def decode_agent(data: bytes) -> t.AgentMessage:
    message = _parse(c.AgentMessage(), data)
    kind = message.WhichOneof("message")
    if kind == "frame":
        return _from_frame(message.frame)
    if kind == "event":
        return _from_event(message.event)
    if kind == "result":
        r = message.result
        return t.CommandResult(r.id, r.ok, r.error, dict(r.data))
    if kind == "log":
        g = message.log
        return t.LogChunk(g.job, g.generation, g.rank, g.stream, g.text, g.dropped)
    if kind == "hello":
        return _from_hello(message.hello)
    if kind == "spans":
        s = message.spans
        return t.Spans(tuple(_from_worker_spans(w) for w in s.workers), s.offset_ns, s.error_ns, s.dropped)
    if kind == "clock_asked":
        return t.ClockAsked(message.clock_asked.sent_ns)
    raise ProtocolError("an agent message of no known kind")


# --- controller -> agent ---------------------------------------------------------------------------------------


def encode_controller(message: t.ControllerMessage) -> bytes:
    return controller_message(message).SerializeToString()


def controller_message(message: t.ControllerMessage) -> c.ControllerMessage:
    match message:
        case t.Ack():
            return c.ControllerMessage(ack=c.Ack(**_fields(message)))
        case t.Command():
            return c.ControllerMessage(command=_command(message))
        case t.Welcome():
            return c.ControllerMessage(welcome=c.Welcome(**_fields(message)))
        case t.Refused():
            return c.ControllerMessage(refused=c.Refused(reason=message.reason))
        case t.ClockTold():
            return c.ControllerMessage(clock_told=c.ClockTold(**_fields(message)))


def decode_controller(data: bytes) -> t.ControllerMessage:
    message = _parse(c.ControllerMessage(), data)
    kind = message.WhichOneof("message")
    if kind == "ack":
        return t.Ack(message.ack.frames, message.ack.events, message.ack.cadence)
    if kind == "command":
        return _from_command(message.command)
    if kind == "welcome":
        w = message.welcome
        return t.Welcome(w.protocol, w.cadence, w.frames_acked, w.events_acked)
    if kind == "refused":
        return t.Refused(message.refused.reason)
    if kind == "clock_told":
        return t.ClockTold(message.clock_told.sent_ns, message.clock_told.wall_ns)
    raise ProtocolError("a controller message of no known kind")


def _from_worker_spans(w: c.WorkerSpans) -> t.WorkerSpans:
    return t.WorkerSpans(w.rank, w.generation, w.count, w.lost, w.first, w.last, tuple(w.names), w.data)


# --- frames ----------------------------------------------------------------------------------------------------


_OF_WORKER = (
    "rank", "generation", "pid", "step", "phase", "operation", "operation_age", "progress_age", "tick_age", "stopped",
    "loss", "tokens", "median_step", "coordinate", "sizes", "still_age",
)  # fmt: skip
_OF_STEP = ("rank", "generation", "step", "end_wall_ns", "seconds", "loss", "tokens")
_worker_row, _step_row = attrgetter(*_OF_WORKER), attrgetter(*_OF_STEP)
_PHASE_INDEX = {phase: index for index, phase in enumerate(t.PHASES)}
_NOWHERE = (-1, -1, -1)


def _frame(f: t.Frame) -> c.Frame:
    workers: dict[str, Any] = dict(zip(_OF_WORKER, zip(*map(_worker_row, f.workers), strict=True), strict=False))
    if workers:
        workers["phase"] = [_PHASE_INDEX[phase] for phase in workers["phase"]]
        for name in ("coordinate", "sizes"):
            workers[name] = [v for triple in workers[name] for v in triple or _NOWHERE]
        if any(w.meters is not None for w in f.workers):
            workers["meters"] = _meters(f.workers)
        if any(w.standing is not None for w in f.workers):
            workers["standing"] = _standing(f.workers)
    return c.Frame(
        seq=f.seq,
        wall_ns=f.wall_ns,
        mono_ns=f.mono_ns,
        cadence=f.cadence,
        offsets=f.offsets,
        nics=[p.NicSamples(name=n.name, tx_total=n.tx_total, rx_total=n.rx_total, tx=n.tx, rx=n.rx) for n in f.nics],
        host=f.host,
        gpus=[p.GpuGauges(index=g.index, values=g.values) for g in f.gpus],
        workers=p.Workers(**workers),
        steps=p.Steps(**dict(zip(_OF_STEP, zip(*map(_step_row, f.steps), strict=True), strict=False))),
    )


def _meters(workers: Sequence[t.WorkerSample]) -> p.Meters:
    known = [(i, w.meters) for i, w in enumerate(workers) if w.meters is not None]
    return p.Meters(
        worker=[i for i, _ in known],
        mfu=[m.mfu for _, m in known],
        tokens_per_s=[m.tokens_per_s for _, m in known],
        parts=[seconds for _, m in known for seconds in m.parts],
        memory_bytes=[m.memory_bytes for _, m in known],
        grad_norm=[m.grad_norm for _, m in known],
    )


def _from_meters(m: p.Meters, workers: int) -> list[t.Meters | None]:
    parts, each = len(t.STEP_PARTS), m.memory_bytes
    _same_length("meters", len(m.worker), m.mfu, m.tokens_per_s, each)
    _same_length("parts of steps", parts * len(m.worker), m.parts)
    norms = m.grad_norm or [t.NAN] * len(m.worker)  # older agents tell none
    _same_length("meters", len(m.worker), norms)
    found: list[t.Meters | None] = [None] * workers
    for row, worker in enumerate(m.worker):
        if worker >= workers:
            raise ProtocolError("frame: meters of a worker that it lacks")
        found[worker] = t.Meters(
            m.mfu[row], m.tokens_per_s[row], tuple(m.parts[row * parts : (row + 1) * parts]), each[row], norms[row]
        )
    return found


def _standing(workers: Sequence[t.WorkerSample]) -> p.Standing:
    known = [(i, w.standing) for i, w in enumerate(workers) if w.standing is not None]
    groups = [group for _, s in known for group in s.groups]
    return p.Standing(
        worker=[i for i, _ in known],
        kind=[s.kind for _, s in known],
        group=[s.group for _, s in known],
        number=[s.number for _, s in known],
        is_handed=[s.is_handed for _, s in known],
        groups=[len(s.groups) for _, s in known],
        label=[g.label for g in groups],
        ident=[g.ident for g in groups],
        members=[g.members for g in groups],
        begun=[g.begun for g in groups],
    )


def _from_standing(m: p.Standing, workers: int) -> list[t.Standing | None]:
    _same_length("standing workers", len(m.worker), m.kind, m.group, m.number, m.is_handed, m.groups)
    _same_length("groups", sum(m.groups), m.label, m.ident, m.members, m.begun)
    groups = [t.GroupCount(*row) for row in zip(m.label, m.ident, m.members, m.begun, strict=True)]
    found: list[t.Standing | None] = [None] * workers
    first = 0
    columns = (m.worker, m.groups, m.kind, m.group, m.number, m.is_handed)
    for worker, count, kind, group, number, is_handed in zip(*columns, strict=True):
        if worker >= workers or group >= count:
            raise ProtocolError("frame: a standing worker, or a group of it, that it lacks")
        found[worker] = t.Standing(kind, group, number, is_handed, tuple(groups[first : first + count]))
        first += count
    return found


def _from_frame(f: c.Frame) -> t.Frame:
    w, s = f.workers, f.steps
    n = len(w.rank)
    _same_length("workers", n, w.generation, w.pid, w.step, w.phase, w.operation, w.operation_age, w.progress_age)
    _same_length("workers", n, w.tick_age, w.stopped, w.loss, w.tokens, w.median_step, w.still_age)
    _same_length("worker coordinates", 3 * n, w.coordinate, w.sizes)
    _same_length("steps", len(s.rank), s.generation, s.step, s.end_wall_ns, s.seconds, s.loss, s.tokens)
    samples = len(f.offsets)
    if samples % 4 or any(len(x.tx) != samples or len(x.rx) != samples for x in f.nics):
        raise ProtocolError("frame: NIC columns and offsets differ in length")
    if any(v >= len(t.PHASES) for v in w.phase):
        raise ProtocolError("frame: unknown phase")
    xyz = [_triple(w.coordinate, i) for i in range(n)]
    sizes = [_triple(w.sizes, i) for i in range(n)]
    meters = _from_meters(w.meters, n) if w.HasField("meters") else [None] * n
    standing = _from_standing(w.standing, n) if w.HasField("standing") else [None] * n
    return t.Frame(
        seq=f.seq,
        wall_ns=f.wall_ns,
        mono_ns=f.mono_ns,
        offsets=f.offsets,
        nics=tuple(t.NicSamples(x.name, x.tx_total, x.rx_total, x.tx, x.rx) for x in f.nics),
        host=dict(f.host),
        gpus=tuple(t.GpuGauges(g.index, dict(g.values)) for g in f.gpus),
        workers=tuple(
            t.WorkerSample(rank, generation, pid, step, t.PHASES[phase], *rest)
            for rank, generation, pid, step, phase, *rest in zip(
                w.rank, w.generation, w.pid, w.step, w.phase, w.operation, w.operation_age, w.progress_age,
                w.tick_age, w.stopped, w.loss, w.tokens, w.median_step, xyz, sizes, meters, w.still_age, standing,
                strict=True,
            )
        ),
        steps=tuple(
            t.StepRecord(*row)
            for row in zip(s.rank, s.generation, s.step, s.end_wall_ns, s.seconds, s.loss, s.tokens, strict=True)
        ),
        cadence=f.cadence,
    )  # fmt: skip


def _triple(values: Any, i: int) -> tuple[int, int, int] | None:
    a = values[3 * i]
    return None if a < 0 else (a, values[3 * i + 1], values[3 * i + 2])


def _same_length(what: str, n: int, *columns: Any) -> None:
    if any(len(column) != n for column in columns):
        raise ProtocolError(f"frame: columns of {what} differ in length")


# --- hello, events ---------------------------------------------------------------------------------------------


def _hello(h: t.Hello) -> c.Hello:
    i = h.identity
    return c.Hello(
        protocol_min=h.protocol_min,
        protocol_max=h.protocol_max,
        wall_ns=h.wall_ns,
        workers=[p.KeptWorker(**_fields(w)) for w in h.workers],
        identity=p.Identity(
            node=i.node,
            hostname=i.hostname,
            incarnation=i.incarnation,
            ips=i.ips,
            pod=p.Pod(name=i.pod.name, namespace=i.pod.namespace, uid=i.pod.uid),
            gpus=[p.Gpu(**_fields(g)) for g in i.gpus],
            nics=[p.Nic(**_fields(n)) for n in i.nics],
            switch=i.switch,
            slots=i.slots,
            versions=i.versions,
            boot_id=i.boot_id,
            cpus=i.cpus,
            memory_bytes=i.memory_bytes,
            address=i.address,
            ping_port=i.ping_port,
        ),
    )


def _from_hello(h: c.Hello) -> t.Hello:
    i = h.identity
    if not i.node or not i.incarnation:
        raise ProtocolError("hello: no node name or incarnation")
    return t.Hello(
        identity=t.Identity(
            node=i.node,
            hostname=i.hostname,
            incarnation=i.incarnation,
            ips=tuple(i.ips),
            pod=t.Pod(i.pod.name, i.pod.namespace, i.pod.uid),
            gpus=tuple(t.Gpu(g.index, g.uuid, g.model, g.pci, g.memory_bytes) for g in i.gpus),
            nics=tuple(t.Nic(n.name, n.kind, n.speed_bps, n.numa_node, n.state) for n in i.nics),
            switch=i.switch,
            slots=i.slots,
            versions=dict(i.versions),
            boot_id=i.boot_id,
            cpus=i.cpus,
            memory_bytes=i.memory_bytes,
            address=i.address,
            ping_port=i.ping_port,
        ),
        workers=tuple(t.KeptWorker(w.job, w.generation, w.rank, w.local_rank, w.pid, w.running) for w in h.workers),
        protocol_min=h.protocol_min,
        protocol_max=h.protocol_max,
        wall_ns=h.wall_ns,
    )


def _event(n: t.Numbered) -> c.Event:
    match n.event:
        case t.WorkerExited():
            return c.Event(seq=n.seq, worker_exited=p.WorkerExited(**_fields(n.event)))
        case t.LogMatched():
            return c.Event(seq=n.seq, log_matched=p.LogMatched(**_fields(n.event)))
        case t.AgentNotice():
            return c.Event(seq=n.seq, notice=p.AgentNotice(**_fields(n.event)))
        case t.PlanPublished():
            return c.Event(seq=n.seq, plan_published=p.PlanPublished(**_fields(n.event)))
        case t.StateRestored():
            return c.Event(seq=n.seq, state_restored=p.StateRestored(**_fields(n.event)))


def _from_event(e: c.Event) -> t.Numbered:
    kind = e.WhichOneof("event")
    if kind is None or kind not in _EVENT_FIELDS:
        raise ProtocolError("an event of no known kind")
    message = getattr(e, kind)
    values = {f.name: getattr(message, f.name) for f in dataclasses.fields(_EVENT_FIELDS[kind])}
    if "severity" in values:
        values["severity"] = _severity(values["severity"])
    return t.Numbered(e.seq, _EVENT_FIELDS[kind](**values))


def _severity(text: str) -> t.Severity:
    try:
        return t.Severity(text)
    except ValueError:
        raise ProtocolError(f"unknown severity {text!r}") from None


# --- commands --------------------------------------------------------------------------------------------------


def _command(command: t.Command) -> c.Command:
    m = c.Command(id=command.id, job=command.job, generation=command.generation)
    match command.order:
        case t.StartStore(host):
            m.start_store.host = host
        case t.StopWorkers(grace):
            m.stop_workers.SetInParent()
            m.stop_workers.grace = grace
        case t.Inject(kind, rank):
            m.inject.kind, m.inject.rank = kind, rank
        case t.RequestCheckpoint():
            m.request_checkpoint.SetInParent()
        case t.RunCheck() as check:
            m.run_check.CopyFrom(c.RunCheck(**_fields(check)))
        case t.KnockAt(host, port):
            m.knock_at.host, m.knock_at.port = host, port
        case t.DumpStacks():
            m.dump_stacks.SetInParent()
        case t.StartWorkers() as s:
            m.start_workers.CopyFrom(
                c.StartWorkers(
                    program=p.Program(**_fields(s.program)),
                    ranks=[p.Rank(**_fields(r)) for r in s.ranks],
                    world_size=s.world_size,
                    nnodes=s.nnodes,
                    master_addr=s.master_addr,
                    master_port=s.master_port,
                    max_restarts=s.max_restarts,
                    stream_logs=s.stream_logs,
                )
            )
    return m


def _from_command(m: c.Command) -> t.Command:
    kind = m.WhichOneof("order")
    order: t.Order
    if kind == "start_store":
        order = t.StartStore(m.start_store.host)
    elif kind == "stop_workers":
        order = t.StopWorkers(m.stop_workers.grace)
    elif kind == "inject":
        order = t.Inject(m.inject.kind, m.inject.rank)
    elif kind == "request_checkpoint":
        order = t.RequestCheckpoint()
    elif kind == "run_check":
        order = t.RunCheck(tuple(m.run_check.checks), m.run_check.options, m.run_check.deadline)
    elif kind == "dump_stacks":
        order = t.DumpStacks()
    elif kind == "knock_at":
        order = t.KnockAt(m.knock_at.host, m.knock_at.port)
    elif kind == "start_workers":
        s = m.start_workers
        g = s.program
        order = t.StartWorkers(
            program=t.Program(g.target, tuple(g.args), g.module, g.cwd, dict(g.env), g.hooks, g.warm),
            ranks=tuple(t.Rank(r.rank, r.local_rank, r.group_rank) for r in s.ranks),
            world_size=s.world_size,
            nnodes=s.nnodes,
            master_addr=s.master_addr,
            master_port=s.master_port,
            max_restarts=s.max_restarts,
            stream_logs=s.stream_logs,
        )
    else:
        raise ProtocolError("a command of no known kind: this agent is older than its controller")
    return t.Command(m.id, m.job, m.generation, order)


# --- helpers ---------------------------------------------------------------------------------------------------


def _fields(value: Any) -> dict[str, Any]:
    """The dataclass's fields by name, one level deep: messages use the same names."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _parse(message: _M, data: bytes) -> _M:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a malformed message of {len(data)} bytes: {error}") from None
    return message


def common_protocol(low: int, high: int) -> int:
    """The protocol to speak with a peer of this range. ProtocolError in one line when there is none."""
    if not low <= PROTOCOL <= high:
        raise ProtocolError(f"protocol {PROTOCOL} is not within the peer's {low} to {high}: update the older side")
    return PROTOCOL
