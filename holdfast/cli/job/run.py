"""`holdfast run`: a training job with torchrun's options, monitored and restarted."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import Unavailable, UsageError
from holdfast.cli.common import completion, interrupts
from holdfast.cli.common.bounds import check_local, check_world
from holdfast.cli.common.client import Client, Json
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import with_client
from holdfast.cli.common.output import note
from holdfast.cli.job.console import Console
from holdfast.cli.job.launch import embedded, environment, layouts, torchrun, torchrun_options
from holdfast.cli.job.launch.parallel import check_parallel, declared, parse_parallel
from holdfast.cli.job.launch.preload import parse_preload
from holdfast.cli.job.launch.share import parse_share
from holdfast.cli.job.standard_input import StandardInput
from holdfast.cli.job.until_end import follow
from holdfast.facts.faults import parse_faults

_VALUES = (
    "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr",
    "start_method", "monitor_interval", "logs_specs", "event_log_handler", "numa_binding",
)  # fmt: skip
"""torchrun's options that are accepted only to be ignored or refused; they take a value."""


def normalize(token: str) -> str:
    """torchrun accepts --nproc_per_node and --nproc-per-node."""
    return token.replace("_", "-")


def _ignored(name: str) -> Any:
    return typer.Option(f"--{name}", metavar="VALUE", help="torchrun's; not needed here.", hidden=True)


def _limit(text: str) -> Any:
    return typer.Option(metavar="TIME", help=text)


@with_client
def run(
    client: Client,
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="A script or, with -m, a module.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS...", help="Its arguments.")] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module's name.")] = False,
    nnodes: Annotated[str, typer.Option(metavar="N|MIN:MAX", help="Nodes to train on.")] = "1",
    nproc_per_node: Annotated[str, typer.Option(metavar="N|auto|gpu|cpu", help="Workers on each node.")] = "1",
    max_restarts: Annotated[
        int | None,
        typer.Option(metavar="N", min=-1, max=1_000_000, help="Restarts until the job is marked failed; -1: no limit."),
    ] = None,
    pause_limit: Annotated[str, _limit("Restart after a pause of this length with a busy worker (30m).")] = "",
    idle_limit: Annotated[str, _limit("Restart after a pause of this length without activity (60s).")] = "",
    idle_limit_start: Annotated[str, _limit("The same before the first step, or outside of training (5m).")] = "",
    exit_limit: Annotated[
        str, _limit("Stop idle ranks so long after another one ended with 0; the job is then finished (10m).")
    ] = "",
    pause_alert: Annotated[str, _limit("Alert people after a pause of this length (5m).")] = "",
    hang_floor: Annotated[str, _limit("Time added to `--hang-steps` (0.75s).")] = "",
    hang_steps: Annotated[
        str, typer.Option(metavar="N", help="Median steps until a worker that cannot continue is dead (2).")
    ] = "",
    hang_limit_start: Annotated[
        str, _limit("Time until it is dead before the first step, or outside of training (10s).")
    ] = "",
    stuck_limit: Annotated[str, _limit("Time without activity in an operation that all ranks have entered (3m).")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the job (default: the script's).")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|NAME=VALUE", help="Add a variable to the workers' environment; may repeat."),
    ] = None,
    no_env: Annotated[
        bool, typer.Option("--no-env", help="Do not give this shell's environment to the workers.")
    ] = False,
    no_hooks: Annotated[bool, typer.Option("--no-hooks", help="Do not observe steps and collectives.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start new interpreters, not forks of the fork server.")
    ] = False,
    preload: Annotated[
        str,
        typer.Option(
            metavar="MODULE,...", help="Import these once on each node, not in every worker: restarts are quick."
        ),
    ] = "",
    priority: Annotated[
        int,
        typer.Option(
            metavar="N", min=-1000, max=1000, help="Jobs with a higher priority get nodes first (default: 0)."
        ),
    ] = 0,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Take nodes from jobs with a lower priority, after a checkpoint.")
    ] = False,
    share: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Share nodes with other jobs given this option: the most memory that each worker uses on its device. "
            "For the embedded trainer with partial backward.",
        ),
    ] = "",
    parallel: Annotated[
        str,
        typer.Option(metavar="pp=N,dp=N,tp=N", help="Its groups, to which nodes near each other are given."),
    ] = "",
    replan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plan the embedded trainer's layouts on fewer nodes of this cluster (TOML, as for `plan`): when nodes "
            "are lost, the job goes on with one, or waits where that costs less.",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and leave it running.")] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND@STEP:TARGET", help="Inject a fault; may repeat.", autocompletion=completion.faults),
    ] = None,
    no_python: Annotated[
        bool, typer.Option("--no-python", help="SCRIPT is a program to execute, not a Python script.")
    ] = False,
    log_dir: Annotated[
        str, typer.Option(metavar="PATH", help="Folder on the nodes for files of `--redirects` and `--tee`.")
    ] = "",
    redirects: Annotated[
        str,
        typer.Option(
            "--redirects", "-r", metavar="N|RANK:N,...", help="Streams that go to files only (1: out, 2: err)."
        ),
    ] = "",
    tee: Annotated[
        str, typer.Option("--tee", "-t", metavar="N|RANK:N,...", help="Streams that go to files and the console.")
    ] = "",
    local_ranks_filter: Annotated[
        str, typer.Option(metavar="RANK,...", help="Show the output of these local ranks only.")
    ] = "",
    duplicate_stdout_filters: Annotated[
        str, typer.Option(metavar="TEXT,...", help="Write lines of `--tee` with one of these texts to a file here.")
    ] = "",
    duplicate_stderr_filters: Annotated[str, typer.Option(metavar="TEXT,...", help="The same of standard error.")] = "",
    role: Annotated[str, typer.Option(metavar="NAME", help="`ROLE_NAME` of the workers (default).")] = "",
    virtual_local_rank: Annotated[
        bool, typer.Option("--virtual-local-rank", help="Each worker sees its GPU only, as local rank 0.")
    ] = False,
    signals_to_handle: Annotated[
        str, typer.Option(metavar="SIGNAL,...", help="Signals that stop the job (SIGTERM, SIGINT, SIGHUP).")
    ] = "",
    shutdown_timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help="Time from SIGTERM to SIGKILL when the command stops the job (10).")
    ] = "",
    run_path: Annotated[bool, typer.Option("--run-path", hidden=True)] = False,
    standalone: Annotated[bool, typer.Option("--standalone", hidden=True)] = False,
    logs_specs: Annotated[str, _ignored("logs-specs")] = "",
    event_log_handler: Annotated[str, _ignored("event-log-handler")] = "",
    numa_binding: Annotated[str, _ignored("numa-binding")] = "",
    node_rank: Annotated[str, _ignored("node-rank")] = "",
    rdzv_backend: Annotated[str, _ignored("rdzv-backend")] = "",
    rdzv_endpoint: Annotated[str, _ignored("rdzv-endpoint")] = "",
    rdzv_id: Annotated[str, _ignored("rdzv-id")] = "",
    rdzv_conf: Annotated[str, _ignored("rdzv-conf")] = "",
    master_addr: Annotated[str, _ignored("master-addr")] = "",
    master_port: Annotated[str, _ignored("master-port")] = "",
    local_addr: Annotated[str, _ignored("local-addr")] = "",
    start_method: Annotated[str, _ignored("start-method")] = "",
    monitor_interval: Annotated[str, _ignored("monitor-interval")] = "",
) -> int:
    """Start a job on the agents and follow it: torchrun's options, live log, the job's exit code.

    Without a controller it starts one here, for this job only.
    """
    given = locals()
    return interrupts.guarded(lambda: _run(**given), torchrun_options.parse_signals(signals_to_handle))


def _run(
    client: Client, target: str, args: list[str] | None, module: bool, nnodes: str, nproc_per_node: str,
    max_restarts: int | None, name: str, env: list[str] | None, no_env: bool, no_hooks: bool, fresh: bool,
    preload: str, detach: bool, fault: list[str] | None, pause_limit: str, idle_limit: str, idle_limit_start: str,
    exit_limit: str, pause_alert: str, hang_floor: str, hang_steps: str, hang_limit_start: str, stuck_limit: str,
    priority: int, preempt: bool, no_python: bool, log_dir: str, redirects: str, tee: str, local_ranks_filter: str,
    duplicate_stdout_filters: str, duplicate_stderr_filters: str, role: str, virtual_local_rank: bool,
    shutdown_timeout: str, parallel: str, replan: Path | None, share: str, **given: Any,
) -> int:  # fmt: skip
    ignored = torchrun_options.check({f"--{name.replace('_', '-')}": given[name] for name in _VALUES})
    if ignored:
        note(f"{', '.join(ignored)}: not needed here, ignored")
    cwd = Path.cwd()
    torchrun.check_text(str(cwd), "the working folder")
    torchrun.check_text(name, "--name")
    if len(name) > 200:
        raise UsageError(f"--name has at most 200 characters, but this one has {len(name)}")
    for i, word in enumerate(args or []):
        torchrun.check_text(word, f"argument {i + 1} of the script")
    path = torchrun.check_script(target, module, no_python, cwd)
    modules = parse_preload(preload, fresh, no_python)
    files = torchrun_options.parse_files(log_dir, redirects, tee)
    ranks = torchrun_options.parse_ranks(local_ranks_filter)
    filters = {
        "out": torchrun_options.parse_filters(duplicate_stdout_filters),
        "err": torchrun_options.parse_filters(duplicate_stderr_filters),
    }
    grace = torchrun_options.parse_shutdown(shutdown_timeout)
    torchrun.check_text(role, "--role")
    least, most = torchrun.parse_nnodes(nnodes)
    torchrun.check_nproc(nproc_per_node, most)
    environment.given(env or [], os.environ)
    faults = parse_faults(fault or [], sys.maxsize, sys.maxsize)
    limits = torchrun.parse_limits({
        "pause_limit": pause_limit, "idle_limit": idle_limit, "idle_limit_start": idle_limit_start,
        "exit_limit": exit_limit, "pause_alert": pause_alert, "hang_floor": hang_floor, "hang_steps": hang_steps,
        "hang_limit_start": hang_limit_start, "stuck_limit": stuck_limit,
    })  # fmt: skip
    sizes = parse_parallel(parallel)
    of_queue = {"--priority": priority, "--preempt": preempt, "--share": share}
    queue = " and ".join(option for option, is_given in of_queue.items() if is_given)

    trainer_args = (args or []) if module and target in embedded.MODULES else None
    share_bytes = parse_share(share, trainer_args)

    def check_settings(world: int, here: bool) -> None:
        if here:
            check_parallel(sizes, world if planned is not None else world // least * most)
        if trainer_args is not None:
            embedded.check(trainer_args, world, here)

    imports_itself = fresh or no_python
    planned = None
    if replan is not None:
        planned = layouts.plan_all(replan, args or [], target if module else "", (least, most), nproc_per_node)
    here = least if planned is None else most
    with _cluster(client, here, nproc_per_node, detach, queue, check_settings, imports_itself) as (
        reached, wanted, failure, own,
    ):  # fmt: skip
        with interrupts.allowed():
            count, nproc = torchrun.place(reached.nodes(), nnodes, wanted)
        if own is None:
            check_settings((count if planned is None else most) * nproc, here=False)
        check_world(most, nproc)
        full = most if ":" in nnodes else count
        check_parallel(sizes, full * nproc)
        parse_faults(fault or [], count * nproc, count, names=[str(node["name"]) for node in reached.nodes()])
        choice = torchrun_options.choice(nproc, files, ranks, filters)
        folder = files.folder(cwd) if files else ""
        variables, unsendable = environment.of_workers(env or [], no_env, nproc, os.environ)
        if unsendable:
            note(f"not given to the workers, for they are not UTF-8: {', '.join(unsendable)}")
        if variables and not no_env:
            reached.check_private("the environment", "or leave it out with --no-env")
        # Only a worker on this host can read what is typed here, and only one of them.
        typed = StandardInput(own) if own is not None and count * nproc == 1 else None
        spec: Json = {
            "name": name or (target if module else Path(target).stem),
            "program": {
                "target": path,
                "args": args or [],
                "module": module,
                "cwd": str(cwd),
                "env": variables | ({"ROLE_NAME": role} if role else {}),
                "hooks": not no_hooks,
                "warm": not fresh,
                "executable": no_python,
                "virtual_local_rank": virtual_local_rank,
                "log_dir": folder,
                "redirects": str(files.streams(nproc)),
                "stdin": typed.path if typed is not None else "",
                "preload": modules,
            },
            "nnodes": full,
            "node_counts": list(range(least, most)),
            "nproc_per_node": nproc,
            "max_restarts": max_restarts,
            "faults": [str(one) for one in faults],
            "limits": limits,
            "priority": priority,
            "preempt": preempt,
            **({"share_bytes": share_bytes} if share_bytes else {}),
            **declared(
                sizes, trainer_args, ((count if planned is None else most) * nproc, full * nproc), own is not None
            ),
        }
        if planned is not None:
            spec |= {"node_counts": [one["nodes"] for one in planned], "layouts": planned}
        job = reached.submit(spec)
        if typed is not None:
            typed.start()
        if detach:
            print(job)
            return 0
        if folder:
            note(f"files of the workers: {folder}/{job}_GROUP/attempt_N/LOCAL_RANK/ on their nodes")
        console = Console(choice, Path(folder) / job if any(filters.values()) else None)
        return follow(reached, job, failure, console, grace)


@contextmanager
def _cluster(
    client: Client,
    nnodes: int,
    nproc: str,
    detach: bool,
    queue: str,
    check_settings: Callable[[int, bool], None],
    imports_itself: bool,
) -> Iterator[tuple[Client, str, Callable[[], str], Path | None]]:
    """The named cluster, or a local one if none is named and none responds. `queue`: given options that have no effect
    without other jobs. `check_settings`: of so many workers, on this host; called before a local one starts.
    `imports_itself`: its workers are no forks that could use what a fork server has imported, for seconds. The last of
    what it gives is the folder of a local one."""
    if _answers(client, must=client.is_named or detach):
        yield client, nproc, str, None
        return
    if queue:
        raise UsageError(
            f"{queue}: no controller answers at {client.address}, so there is no queue of jobs; start one (`holdfast "
            "controller`) or name one with --controller"
        )
    require("agent,controller", "grpc", "psutil", "fastapi", "numpy")  # reported here: the daemons are other processes
    from holdfast.cli.local.cluster import LocalCluster

    slots = torchrun.local_nproc(nproc)
    check_local(nnodes, slots)
    check_settings(nnodes * slots, True)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-run-", ignore_cleanup_errors=True) as folder,
        LocalCluster(
            Path(folder), nodes=nnodes, slots=slots, agent_flags=("--preload", "") if imports_itself else ()
        ) as cluster,
    ):
        note(f"no controller at {client.address}; started one here: {cluster.url}")
        yield cluster.client, str(slots), lambda: cluster.failure, Path(folder)


def _answers(client: Client, must: bool) -> bool:
    try:
        with interrupts.allowed():
            client.status()
    except Unavailable:
        if must:
            raise
        return False
    return True
