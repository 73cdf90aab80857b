"""Types to messages and back: total, both ways, tested by round trip. The only module that knows the messages.

`decode_*` raise ProtocolError on what cannot be a message of ours; unknown fields are ignored by protobuf itself.
"""

import dataclasses
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast.base.errors import ProtocolError
from holdfast.proto import controller_pb2 as c
from holdfast.proto import types_pb2 as p
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.frames import frame_from, frame_message

_M = TypeVar("_M", bound=Message)

PROTOCOL = 1
"""The protocol version; a peer whose range does not contain it is refused in one line."""

_EVENT_FIELDS: dict[str, type[t.Event]] = {
    "worker_exited": t.WorkerExited,
    "log_matched": t.LogMatched,
    "notice": t.AgentNotice,
    "plan_published": t.PlanPublished,
    "state_restored": t.StateRestored,
    "progress_seen": t.ProgressSeen,
    "imports_timed": t.ImportsTimed,
}


# --- agent -> controller ---------------------------------------------------------------------------------------


def encode_agent(message: msg.AgentMessage) -> bytes:
    return agent_message(message).SerializeToString()


def agent_message(message: msg.AgentMessage) -> c.AgentMessage:
    match message:
        case t.Frame():
            return c.AgentMessage(frame=frame_message(message))
        case msg.Numbered():
            return c.AgentMessage(event=_event(message))
        case msg.CommandResult():
            return c.AgentMessage(
                result=c.CommandResult(id=message.id, ok=message.ok, error=message.error, data=message.data)
            )
        case msg.LogChunk():
            return c.AgentMessage(log=c.LogChunk(**_fields(message)))
        case msg.Hello():
            return c.AgentMessage(hello=_hello(message))
        case msg.Spans():
            workers = [c.WorkerSpans(**_fields(w)) for w in message.workers]
            return c.AgentMessage(spans=c.Spans(**_fields(message) | {"workers": workers}))
        case msg.ClockRequest():
            return c.AgentMessage(clock_request=c.ClockRequest(sent_ns=message.sent_ns))
        case msg.Piece():
            return c.AgentMessage(piece=c.Piece(data=message.data, more=message.more))


def decode_agent(data: bytes) -> msg.AgentMessage:
    message = _parse(c.AgentMessage(), data)
    kind = message.WhichOneof("message")
    if kind == "frame":
        return frame_from(message.frame)
    if kind == "event":
        return _from_event(message.event)
    if kind == "result":
        r = message.result
        return msg.CommandResult(r.id, r.ok, r.error, dict(r.data))
    if kind == "log":
        g = message.log
        return msg.LogChunk(g.job, g.generation, g.rank, g.stream, g.text, g.dropped, g.unfinished)
    if kind == "hello":
        return _from_hello(message.hello)
    if kind == "spans":
        s = message.spans
        return msg.Spans(tuple(_from_worker_spans(w) for w in s.workers), s.offset_ns, s.error_ns, s.dropped)
    if kind == "clock_request":
        return msg.ClockRequest(message.clock_request.sent_ns)
    if kind == "piece":
        return msg.Piece(message.piece.data, message.piece.more)
    raise ProtocolError("an agent message of no known kind")


# --- controller -> agent ---------------------------------------------------------------------------------------


def encode_controller(message: msg.ControllerMessage) -> bytes:
    return controller_message(message).SerializeToString()


def controller_message(message: msg.ControllerMessage) -> c.ControllerMessage:
    match message:
        case msg.Ack():
            return c.ControllerMessage(ack=c.Ack(**_fields(message)))
        case msg.Command():
            return c.ControllerMessage(command=_command(message))
        case msg.Welcome():
            return c.ControllerMessage(welcome=c.Welcome(**_fields(message)))
        case msg.Refused():
            return c.ControllerMessage(refused=c.Refused(**_fields(message)))
        case msg.ClockReply():
            return c.ControllerMessage(clock_reply=c.ClockReply(**_fields(message)))


def decode_controller(data: bytes) -> msg.ControllerMessage:
    message = _parse(c.ControllerMessage(), data)
    kind = message.WhichOneof("message")
    if kind == "ack":
        return msg.Ack(message.ack.frames, message.ack.events, message.ack.heartbeat_interval)
    if kind == "command":
        return _from_command(message.command)
    if kind == "welcome":
        w = message.welcome
        return msg.Welcome(w.protocol, w.heartbeat_interval, w.frames_acked, w.events_acked)
    if kind == "refused":
        return msg.Refused(message.refused.reason, message.refused.retry_after)
    if kind == "clock_reply":
        return msg.ClockReply(message.clock_reply.sent_ns, message.clock_reply.wall_ns)
    raise ProtocolError("a controller message of no known kind")


def _from_worker_spans(w: c.WorkerSpans) -> msg.WorkerSpans:
    return msg.WorkerSpans(w.rank, w.generation, w.count, w.lost, w.first, w.last, tuple(w.names), w.data, w.job)


# --- hello, events ---------------------------------------------------------------------------------------------


def _hello(h: msg.Hello) -> c.Hello:
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
            predecessors=i.predecessors,
        ),
    )


def _from_hello(h: c.Hello) -> msg.Hello:
    i = h.identity
    if not i.node or not i.incarnation:
        raise ProtocolError("hello: no node name or incarnation")
    return msg.Hello(
        identity=t.Identity(
            node=i.node,
            hostname=i.hostname,
            incarnation=i.incarnation,
            ips=tuple(i.ips),
            pod=t.Pod(i.pod.name, i.pod.namespace, i.pod.uid),
            gpus=tuple(t.Gpu(g.index, g.uuid, g.model, g.pci, g.memory_bytes) for g in i.gpus),
            nics=tuple(t.Nic(n.name, n.kind, n.speed_bps, n.numa_node, n.state, n.link_layer) for n in i.nics),
            switch=i.switch,
            slots=i.slots,
            versions=dict(i.versions),
            boot_id=i.boot_id,
            cpus=i.cpus,
            memory_bytes=i.memory_bytes,
            address=i.address,
            ping_port=i.ping_port,
            predecessors=tuple(i.predecessors),
        ),
        workers=tuple(msg.KeptWorker(w.job, w.generation, w.rank, w.local_rank, w.pid, w.running) for w in h.workers),
        protocol_min=h.protocol_min,
        protocol_max=h.protocol_max,
        wall_ns=h.wall_ns,
    )


def _event(n: msg.Numbered) -> c.Event:
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
        case t.ProgressSeen():
            return c.Event(seq=n.seq, progress_seen=p.ProgressSeen(**_fields(n.event)))
        case t.ImportsTimed():
            return c.Event(seq=n.seq, imports_timed=p.ImportsTimed(**_fields(n.event)))


def _from_event(e: c.Event) -> msg.Numbered:
    kind = e.WhichOneof("event")
    if kind is None or kind not in _EVENT_FIELDS:
        raise ProtocolError("an event of no known kind")
    message = getattr(e, kind)
    values = {f.name: getattr(message, f.name) for f in dataclasses.fields(_EVENT_FIELDS[kind])}
    if "severity" in values:
        values["severity"] = _severity(values["severity"])
    return msg.Numbered(e.seq, _EVENT_FIELDS[kind](**values))


def _severity(text: str) -> t.Severity:
    try:
        return t.Severity(text)
    except ValueError:
        raise ProtocolError(f"unknown severity {text!r}") from None


# --- commands --------------------------------------------------------------------------------------------------


def _command(command: msg.Command) -> c.Command:
    m = c.Command(id=command.id, job=command.job, generation=command.generation)
    match command.order:
        case msg.StartStore(host):
            m.start_store.host = host
        case msg.StopWorkers(grace):
            m.stop_workers.SetInParent()
            m.stop_workers.grace = grace
        case msg.Inject(kind, rank):
            m.inject.kind, m.inject.rank = kind, rank
        case msg.RequestCheckpoint():
            m.request_checkpoint.SetInParent()
        case msg.RunCheck() as check:
            m.run_check.CopyFrom(c.RunCheck(**_fields(check)))
        case msg.ProbePeer(host, port):
            m.probe_peer.host, m.probe_peer.port = host, port
        case msg.DumpStacks():
            m.dump_stacks.SetInParent()
        case msg.StartWorkers() as s:
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


def _from_command(m: c.Command) -> msg.Command:
    kind = m.WhichOneof("order")
    order: msg.Order
    if kind == "start_store":
        order = msg.StartStore(m.start_store.host)
    elif kind == "stop_workers":
        order = msg.StopWorkers(m.stop_workers.grace)
    elif kind == "inject":
        order = msg.Inject(m.inject.kind, m.inject.rank)
    elif kind == "request_checkpoint":
        order = msg.RequestCheckpoint()
    elif kind == "run_check":
        order = msg.RunCheck(tuple(m.run_check.checks), m.run_check.options, m.run_check.deadline)
    elif kind == "dump_stacks":
        order = msg.DumpStacks()
    elif kind == "probe_peer":
        order = msg.ProbePeer(m.probe_peer.host, m.probe_peer.port)
    elif kind == "start_workers":
        s = m.start_workers
        g = s.program
        order = msg.StartWorkers(
            program=msg.Program(
                g.target,
                tuple(g.args),
                g.module,
                g.cwd,
                dict(g.env),
                g.hooks,
                g.warm,
                g.executable,
                g.virtual_local_rank,
                g.log_dir,
                g.redirects or "0",
                g.stdin,
                tuple(g.preload),
            ),
            ranks=tuple(msg.Rank(r.rank, r.local_rank, r.group_rank) for r in s.ranks),
            world_size=s.world_size,
            nnodes=s.nnodes,
            master_addr=s.master_addr,
            master_port=s.master_port,
            max_restarts=s.max_restarts,
            stream_logs=s.stream_logs,
        )
    else:
        raise ProtocolError("a command of no known kind: this agent is older than its controller")
    return msg.Command(m.id, m.job, m.generation, order)


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
