"""`holdfast demo`: the whole system on this machine, with optional fault injection."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base import private
from holdfast.base.config.client import DemoConfig
from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.cli.common import completion, interrupts, output
from holdfast.cli.common.client import OVER, Client
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json, configured
from holdfast.cli.demo.plan import DemoPlan, job_spec, make_plan, mortal_nodes
from holdfast.cli.job.launch import embedded

if TYPE_CHECKING:
    from holdfast.cli.demo.view import View
    from holdfast.cli.local.cluster import LocalCluster

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
PERIOD_S = 0.2
SILENCE_S = 30.0
"""After this time without a response the controller counts as dead."""


@configured(DemoConfig)
def demo(
    config: DemoConfig,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND@STEP:TARGET",
            help="Inject a fault, e.g. kill@20:rank3; may repeat.",
            autocompletion=completion.faults,
        ),
    ] = None,
    pretend: Annotated[
        str,
        typer.Option(
            metavar="PPxDPxTP", help="Show the page of a made-up job of that mesh, e.g. 8x192x8, and start no worker."
        ),
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the page running at the end, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> int:
    """Show the whole system: controller, agents, a training job, and injected faults on request."""
    if pretend:
        return _pretend(pretend, config)
    plan = make_plan(config, fault or [])
    require("all", "grpc", "psutil", "fastapi", "torch")  # reported here, because the daemons are other processes

    def body() -> int:
        with _state_dir(config.state_dir) as state_dir:
            return _run(plan, state_dir, config, keep, as_json)

    return interrupts.guarded(body)


def _pretend(mesh: str, config: DemoConfig) -> int:
    from holdfast.cli.demo import pretend

    sizes = pretend.sizes(mesh)
    require("all", "fastapi", "numpy", "torch")
    with _state_dir(config.state_dir) as state_dir:
        return pretend.pretend(sizes, config.http_port, state_dir)


def _torch_cache(state_dir: Path) -> dict[str, str]:
    """Torch makes a folder on import; in TMPDIR it would not be removed. It executes code from there, so the folder is
    made here, closed to others: torch leaves that to the umask."""
    if _TORCH_CACHE in os.environ:
        return {}
    folder = state_dir / "torch"
    private.make_folder(folder)
    return {_TORCH_CACHE: str(folder)}


def _run(plan: DemoPlan, state_dir: Path, config: DemoConfig, keep: bool, as_json: bool) -> int:
    from holdfast.cli.demo import view as demo_view
    from holdfast.cli.local.cluster import LocalCluster

    store = _own_store(state_dir)
    spec = job_spec(plan, store, Path.cwd())
    embedded.check(spec["program"]["args"], plan.nodes * plan.nproc, here=True)
    with LocalCluster(
        state_dir,
        nodes=plan.nodes,
        spares=plan.spares,
        mortal=mortal_nodes(plan),
        slots=plan.nproc,
        http_port=config.http_port,
        env=_torch_cache(state_dir),
    ) as cluster:
        with demo_view.View(plan, cluster.url) as view, interrupts.allowed():
            cluster.client.submit(spec)
            job = _watch(cluster, plan, view)
        with interrupts.allowed():
            steps, incidents = cluster.client.steps(), cluster.client.incidents()
        found = demo_view.result(job, steps, incidents)
        demo_view.print_summary(job, steps, found, plan.steps, incidents, view.at_risk)
        if config.state_dir is not None:
            output.note(f"the checkpoints are in {store.absolute().as_uri()}")
        if keep:
            view.note(f"the page stays at {cluster.url}; Ctrl-C ends it")
            _wait_for_interrupt()
    if as_json:
        output.print_json(found)
    if job["state"] == "finished" and len(found["steps"]) == plan.steps:
        return 0
    return int(job.get("exit_code") or 0) or 1


def _own_store(state_dir: Path) -> Path:
    """A folder without files of an earlier demo, which would resume from its checkpoints with no steps left."""
    return state_dir / "checkpoints" / time.strftime("%Y%m%d-%H%M%S")


def _watch(cluster: "LocalCluster", plan: DemoPlan, view: "View") -> output.Json:
    """Wait for the end of the job; return its last state."""
    kills = list(plan.controller_kills)
    client: Client = cluster.client
    heard = time.monotonic()
    while True:
        if cluster.failure:
            raise HoldfastError(cluster.failure)
        try:
            status = client.status()
            job, heard = status["job"], time.monotonic()
            view.update(job, client.ranks(), status["incidents"])
        except Unavailable:
            if time.monotonic() - heard > SILENCE_S:
                raise
            job = None
        if job is not None and job["state"] in OVER:
            for kill in kills:
                view.note(f"not injected: {kill}")
            return dict(job)
        if job is not None and kills and job["step"] >= (kills[0].step or 0):
            view.note(f"striking: {kills.pop(0)}")
            cluster.kill_controller()
        time.sleep(PERIOD_S)


def _wait_for_interrupt() -> None:
    try:
        with interrupts.allowed():
            while True:
                time.sleep(3600)
    except KeyboardInterrupt as error:
        if interrupts.code_of(error) != 128 + signal.SIGINT:
            raise


@contextmanager
def _state_dir(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        private.state_folder(wanted)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
