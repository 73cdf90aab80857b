"""Wiring: build the parts, serve, end in order. `holdfast controller` calls `run`."""

import asyncio
import gc
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from holdfast.base import bounds, log, private, service
from holdfast.base.address import format_address
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.errors import HoldfastError
from holdfast.base.state_lock import StateLock
from holdfast.controller.alerts.notice import Pace
from holdfast.controller.alerts.receivers import Receiver, parse_receivers
from holdfast.controller.alerts.send import Sender
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.brain.restore import KEPT
from holdfast.controller.detectors.agents.input import journal_finding
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.recording import Recorder, Start
from holdfast.controller.journal.retention import JournalRetention
from holdfast.controller.schedulers import reconciler
from holdfast.controller.schedulers.base import Scheduler
from holdfast.controller.schedulers.kubernetes import Kubernetes
from holdfast.controller.schedulers.slurm import Slurm
from holdfast.controller.shell import notices
from holdfast.controller.shell.blame_watch import BlameWatch
from holdfast.controller.shell.certificate_watch import CertificateWatch
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.ingest import Ingest, serving_grpc
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.shell.report import Report
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.shell.sweeper import Sweeper
from holdfast.controller.spans.samples import Samples
from holdfast.controller.spans.store import SpanStore
from holdfast.controller.spans.window import SpanWindows
from holdfast.controller.state.events import Found
from holdfast.controller.state.model import ENDED, Options
from holdfast.wire import types as t

_YOUNG = 50_000  # objects made between two collections: a frame has dozens, in no cycle, and seldom gets that old
_AFTER_A_BUG = 1.0  # seconds
_SWITCH = 0.0005  # seconds that a thread (one that writes metrics, say) may keep the interpreter from the loop


def run(config: ControllerConfig) -> int:
    """Serve until a signal comes. Exit codes as in holdfast.base.service."""
    service.raise_priority()
    sys.setswitchinterval(_SWITCH)
    return service.run(lambda stop: _main(config, stop))


def _options(config: ControllerConfig) -> Options:
    return Options(
        heartbeat_interval=config.heartbeat_interval,
        silence_floor=config.silence_floor,
        silence_beats=config.silence_beats,
        hang_steps=config.hang_steps,
        hang_floor=config.hang_floor,
        hang_limit_start=config.hang_limit_start,
        stuck_limit=config.stuck_limit,
        pause_limit=config.pause_limit,
        idle_limit=config.idle_limit,
        idle_limit_start=config.idle_limit_start,
        exit_limit=config.exit_limit,
        pause_alert=config.pause_alert,
        agent_grace=config.agent_grace,
        grow_after=config.grow_after,
        spare_grace=config.spare_grace,
        restart_attempts=config.restart_attempts,
        restart_attempts_fault=config.restart_attempts_fault,
        restart_backoff=config.restart_backoff,
        node_failures=config.node_failures,
        max_evictions=config.max_evictions,
        start_timeout=config.start_timeout,
        stop_timeout=config.stop_timeout,
        detectors=config.detectors,
    )


def _retention(config: ControllerConfig) -> JournalRetention:
    return JournalRetention(config.retention_age, config.retention_incidents, config.retention_jobs)


def build(config: ControllerConfig) -> Shell:
    """The parts without any server: state as the journal left it."""
    boot, options = uuid.uuid4().hex[:8], _options(config)
    brain = ClusterBrain(boot, options)
    _retention(config).check(brain.c.tuning)
    journal = Journal(config.state_dir / "controller.sqlite")
    entities = journal.entities()
    steps = {job: journal.steps(job) for job in _jobs_to_restore(entities)}
    at = now()
    brain.restore(entities, steps, at)
    for id, one in brain.jobs.brains.items():
        one.c.ledger.restore_superseded(journal.superseded(id))
    folder, budget = config.state_dir / "spans", config.span_store_mb << 20
    store = SpanStore(folder, budget, config.span_store_age, brain.jobs.shape)
    shell = Shell(
        brain,
        journal,
        Samples(config.sample_memory_mb << 20),
        LogHub(),
        spans=SpanWindows(config.span_memory_mb << 20, sink=store),
        span_store=store,
        recorder=Recorder(config.record, Start(boot, options, entities, steps, at)) if config.record else None,
    )
    if damaged := [*journal.damaged, *brain.damaged]:
        log.error("journal.damaged", rows=len(damaged), first=damaged[0])
        shell.handle(Found(journal_finding(f"{len(damaged)} row(s) could not be read and are skipped", damaged, at)))
    shell.environments.keep_only([job.spec.id for job in brain.c.active()])
    for job in brain.c.active():
        shell.listen(job.spec.id)
        log.event("controller.back", job=job.spec.id, state=job.state.value)
    return shell


def _lock(folder: Path) -> StateLock:
    """UsageError when another controller has the folder, or it cannot be made."""
    private.state_folder(folder)
    return StateLock(folder, "controller", str(os.getpid()))


def _jobs_to_restore(entities: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
    """Ids of the jobs that are not over, and of the newest that are. What cannot be read is the brain's to report."""
    at = {
        key: (float(doc["submitted_at"]), doc.get("state") in ENDED)
        for kind, key, doc in entities
        if kind == "job" and _is_instant(doc.get("submitted_at"))
    }
    over = sorted((key for key, (_, is_over) in at.items() if is_over), key=lambda key: at[key])
    return [*(key for key, (_, is_over) in at.items() if not is_over), *over[-KEPT:]]


def _is_instant(value: object) -> bool:
    return isinstance(value, int | float) and -bounds.MAX_COUNT <= value <= bounds.MAX_COUNT


def _scheduler(config: ControllerConfig) -> Scheduler | None:
    match config.scheduler:
        case "slurm":
            return Slurm(config.slurm_requeue)
        case "kubernetes":
            return Kubernetes(config.kubernetes_namespace, config.kubernetes_selector)
    return None


def _sender(config: ControllerConfig, receivers: list[Receiver], shell: Shell, report: Report) -> Sender:
    book = notices.restored(shell.journal.entities(), config.notify_digest)
    pace = Pace(config.notify_resend, config.notify_remind, t.Severity(config.notify_from))
    incidents = shell.brain.c.book.incidents
    jobs = notices.JobViews(shell, report)
    return Sender(
        receivers, book, pace, lambda: list(incidents.values()), jobs.now, shell.keep, notices.reporter(shell)
    )


def page_url(config: ControllerConfig, port: int) -> str:
    """The address of the page in notifications, without a slash at its end."""
    if config.page_url:
        return config.page_url.rstrip("/")
    host = config.listen_host
    host = socket.getfqdn() if host in ("", "0.0.0.0", "::") else host
    return f"{'https' if config.tls() is not None else 'http'}://{format_address(host, port)}"


async def _lasting(run: Callable[[], Awaitable[None]], shell: Shell) -> None:
    """Run it again whenever a bug in Holdfast ends it: the watcher of a month's training must outlive one value."""
    while True:
        try:
            await run()
        except HoldfastError:
            raise  # it says what is wrong and what would be right
        except Exception as error:
            shell.note_bug("controller.bug", where=getattr(run, "__qualname__", ""), error=repr(error))
            await asyncio.sleep(_AFTER_A_BUG)


async def _main(config: ControllerConfig, stop: asyncio.Event) -> int:
    config.check()
    scheduler, receivers = _scheduler(config), parse_receivers(config.notify)
    lock = _lock(config.state_dir)
    shell = build(config)
    watch = BlameWatch(shell, shell.brain.c.tuning, every=config.blame_every, share=config.blame_share)
    watch.restore(shell.journal.entities())
    ingest = Ingest(shell, verified=config.tls_ca is not None)
    certificates = CertificateWatch(shell, shell.brain.c.tuning, config.tls(), ingest.certificates)
    auth = Auth(config.token() or None, config.readers() or None, any_host=config.insecure)
    days = Days(shell)
    days.restore(time.time())
    report = Report(shell, config.max_restarts, watch, days, certificates)
    report.sender = sender = _sender(config, receivers, shell, report)
    app = create_app(report, auth)
    host = config.listen_host
    try:
        async with (
            serving_grpc(ingest, host, config.grpc_port, config.tls_ca, config.tls_cert, config.tls_key) as grpc_port,
            serving(app, host, config.http_port, config.tls_cert, config.tls_key) as http_port,
        ):
            ready = {"grpc": format_address(host, grpc_port), "http": format_address(host, http_port)}
            print(json.dumps(ready), flush=True)
            gc.collect()
            gc.freeze()  # what is here now stays for ever
            gc.set_threshold(_YOUNG)
            log.event("controller.ready", **ready)
            lasting = [shell.run, watch.run, days.run, Sweeper(shell, _retention(config)).run]
            if shell.span_store is not None:
                lasting.append(shell.span_store.run)
            if scheduler is not None:
                lasting.append(reconciler.of_shell(scheduler, shell).run)
            sender.base = page_url(config, http_port)
            lasting.append(sender.run)
            lasting.append(certificates.run)  # after the sender, which takes what is there already as reported
            work = [stop.wait(), *(_lasting(one, shell) for one in lasting)]
            done, others = await asyncio.wait(
                [asyncio.ensure_future(one) for one in work], return_when=asyncio.FIRST_COMPLETED
            )
            shell.logs.close()
            for task in others:
                task.cancel()
            for task in done:
                task.result()  # raises what ended it
    finally:
        shell.flush_steps()
        if shell.span_store is not None:
            shell.span_store.close()
        shell.journal.close()
        if shell.recorder is not None:
            shell.recorder.close()
        lock.close()
    return 0
