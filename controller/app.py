"""Wiring: build the parts, serve, end in order. `holdfast controller` calls `run`."""

import asyncio
import gc
import json
import sys
import uuid

from holdfast import log, service
from holdfast import types as t
from holdfast.config import ControllerConfig
from holdfast.controller.alerts.decide import Decider
from holdfast.controller.alerts.send import Sender, parse_receiver
from holdfast.controller.auth import Auth
from holdfast.controller.blame_watch import BlameWatch
from holdfast.controller.brain import Brain
from holdfast.controller.event_store import EventStore
from holdfast.controller.http import create_app
from holdfast.controller.ingest import Ingest, serving_grpc
from holdfast.controller.journal import Journal
from holdfast.controller.log_hub import LogHub
from holdfast.controller.model import Options
from holdfast.controller.recording import Recorder, Start
from holdfast.controller.report import Report
from holdfast.controller.samples import Samples
from holdfast.controller.schedulers import keeper
from holdfast.controller.schedulers.base import Scheduler
from holdfast.controller.schedulers.kubernetes import Kubernetes
from holdfast.controller.schedulers.slurm import Slurm
from holdfast.controller.serve import serving
from holdfast.controller.shell import Shell, now
from holdfast.controller.span_window import SpanWindow

_YOUNG = 50_000  # objects made between two collections: a frame has dozens, in no cycle, and seldom gets that old
_SWITCH = 0.0005  # seconds that a thread (one that writes metrics, say) may keep the interpreter from the loop


def run(config: ControllerConfig) -> int:
    """Serve until a signal comes. Exit codes as in holdfast.service."""
    service.come_first()
    sys.setswitchinterval(_SWITCH)
    return service.run(lambda stop: _main(config, stop))


def _options(config: ControllerConfig) -> Options:
    return Options(
        cadence=config.cadence,
        silence_floor=config.silence_floor,
        silence_beats=config.silence_beats,
        hang_steps=config.hang_steps,
        hang_floor=config.hang_floor,
        agent_grace=config.agent_grace,
        grow_after=config.grow_after,
        spare_grace=config.spare_grace,
        tries=config.tries,
        tries_fault=config.tries_fault,
        offences=config.offences,
        max_evictions=config.max_evictions,
        start_timeout=config.start_timeout,
        stop_timeout=config.stop_timeout,
        detectors=config.detectors,
    )


def build(config: ControllerConfig) -> Shell:
    """The parts without any server: state as the journal left it."""
    boot, options = uuid.uuid4().hex[:8], _options(config)
    brain = Brain(boot, options)
    journal = Journal(config.state_dir / "controller.sqlite")
    entities = journal.entities()
    jobs = [doc for kind, _, doc in entities if kind == "job"]
    newest = max(jobs, key=lambda doc: float(doc["submitted_at"]), default=None)
    steps = journal.steps(newest["spec"]["id"]) if newest else []
    at = now()
    brain.restore(entities, steps, at)
    spans = SpanWindow(config.span_memory_mb << 20)
    shell = Shell(brain, journal, Samples(config.sample_memory_mb << 20), LogHub(), spans)
    if config.record is not None:
        shell.recorder = Recorder(config.record, Start(boot, options, entities, steps, at))
    if brain.c.active is not None:
        shell.logs.begin(brain.c.active.spec.id)
        log.event("controller.back", job=brain.c.active.spec.id, state=brain.c.active.state.value)
    return shell


def _scheduler(config: ControllerConfig) -> Scheduler | None:
    match config.scheduler:
        case "slurm":
            return Slurm(config.slurm_requeue)
        case "kubernetes":
            return Kubernetes(config.kubernetes_namespace, config.kubernetes_selector)
    return None


async def _main(config: ControllerConfig, stop: asyncio.Event) -> int:
    config.check()
    scheduler, receivers = _scheduler(config), [parse_receiver(text) for text in config.notify]
    shell = build(config)
    shell.span_folder = config.state_dir / "spans"
    store = EventStore(shell.span_folder, config.span_store_mb << 20, config.span_store_age, shell.shape)
    shell.spans.keeper = store
    watch = BlameWatch(shell, shell.brain.c.tuning)
    shell.figures, shell.blame = watch.figures, watch.found
    ingest = Ingest(shell, verified=config.tls_ca is not None)
    app = create_app(Report(shell, config.max_restarts), Auth(config.token() or None, any_host=config.insecure))
    host = config.listen_host
    try:
        async with (
            serving_grpc(ingest, host, config.grpc_port, config.tls_ca, config.tls_cert, config.tls_key) as grpc_port,
            serving(app, host, config.http_port, config.tls_cert, config.tls_key) as http_port,
        ):
            print(json.dumps({"grpc": f"{host}:{grpc_port}", "http": f"{host}:{http_port}"}), flush=True)
            gc.collect()
            gc.freeze()  # what is here now stays for ever
            gc.set_threshold(_YOUNG)
            log.event("controller.ready", grpc=f"{host}:{grpc_port}", http=f"{host}:{http_port}")
            work = [shell.run(), store.run(), watch.run(), stop.wait()]
            if scheduler is not None:
                work.append(keeper.of_shell(scheduler, shell).run())
            if receivers:
                decider = Decider(least=t.Severity(config.notify_from))
                book = shell.brain.c.book.incidents
                work.append(Sender(receivers, decider, lambda: list(book.values()), config.page_url).run())
            done, others = await asyncio.wait(
                [asyncio.ensure_future(one) for one in work], return_when=asyncio.FIRST_COMPLETED
            )
            shell.logs.end()
            for task in others:
                task.cancel()
            for task in done:
                task.result()  # raises what ended it
    finally:
        shell.flush_steps()
        store.close()
        shell.journal.close()
        if shell.recorder is not None:
            shell.recorder.close()
    return 0
