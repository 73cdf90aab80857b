"""`holdfast run`: a training job in torchrun's place, watched and restarted."""

import os
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import torchrun
from holdfast.cli.client import OVER, Client, Json
from holdfast.cli.follow import Follower
from holdfast.cli.options import with_client
from holdfast.cli.output import note
from holdfast.errors import HoldfastError, Unavailable
from holdfast.faults import parse_faults
from holdfast.retry import Backoff


def normalize(token: str) -> str:
    """torchrun takes --nproc_per_node and --nproc-per-node alike."""
    return token.replace("_", "-")


def _ignored(name: str) -> Any:
    return typer.Option(f"--{name}", metavar="VALUE", help="torchrun's; not needed here.", hidden=True)


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
        typer.Option(metavar="N", min=-1, help="Restarts before the job is given up; -1: while it advances."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="For people and metrics (default: the script's).")] = "",
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="For the workers; may repeat.")] = None,
    no_hooks: Annotated[bool, typer.Option("--no-hooks", help="Do not watch steps and collectives.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start fresh interpreters, not forks of a warm one.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and leave it running.")] = False,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="KIND@STEP:TARGET", help="Break something; may repeat.")
    ] = None,
    standalone: Annotated[bool, typer.Option("--standalone", hidden=True)] = False,
    node_rank: Annotated[str, _ignored("node-rank")] = "",
    rdzv_backend: Annotated[str, _ignored("rdzv-backend")] = "",
    rdzv_endpoint: Annotated[str, _ignored("rdzv-endpoint")] = "",
    rdzv_id: Annotated[str, _ignored("rdzv-id")] = "",
    rdzv_conf: Annotated[str, _ignored("rdzv-conf")] = "",
    master_addr: Annotated[str, _ignored("master-addr")] = "",
    master_port: Annotated[str, _ignored("master-port")] = "",
    local_addr: Annotated[str, _ignored("local-addr")] = "",
    start_method: Annotated[str, _ignored("start-method")] = "",
    role: Annotated[str, _ignored("role")] = "",
    log_dir: Annotated[str, _ignored("log-dir")] = "",
    redirects: Annotated[str, _ignored("redirects")] = "",
    tee: Annotated[str, _ignored("tee")] = "",
    monitor_interval: Annotated[str, _ignored("monitor-interval")] = "",
) -> int:
    """Start a job on the agents and follow it: torchrun's options, live log, the job's exit code.

    Without a controller it starts one here, for this job only.
    """
    given = locals()
    ignored = [f"--{option}" for option in torchrun.IGNORED if given[option.replace("-", "_")]]
    if ignored:
        note(f"{', '.join(ignored)}: not needed here, ignored")
    cwd = Path.cwd()
    path = torchrun.check_script(target, module, cwd)
    least, most = torchrun.parse_nnodes(nnodes)
    torchrun.check_nproc(nproc_per_node)
    added = torchrun.parse_env(env or [])
    faults = parse_faults(fault or [], sys.maxsize, most)
    with _cluster(client, least, nproc_per_node, detach) as (reached, wanted, failure):
        count, nproc = torchrun.place(reached.nodes(), nnodes, wanted)
        parse_faults(fault or [], count * nproc, count)
        spec: Json = {
            "name": name or (target if module else Path(target).stem),
            "program": {
                "target": path,
                "args": args or [],
                "module": module,
                "cwd": str(cwd),
                "env": torchrun.default_env(nproc, os.environ) | added,
                "hooks": not no_hooks,
                "warm": not fresh,
            },
            "nnodes": most if ":" in nnodes else count,
            "node_counts": list(range(least, most)),
            "nproc_per_node": nproc,
            "max_restarts": max_restarts,
            "faults": [str(one) for one in faults],
        }
        job = reached.submit(spec)
        if detach:
            print(job)
            return 0
        return follow(reached, job, failure)


@contextmanager
def _cluster(client: Client, nnodes: int, nproc: str, detach: bool) -> Iterator[tuple[Client, str, Callable[[], str]]]:
    """The cluster that was named, or one of our own where none was named and none answers."""
    try:
        client.status()
        yield client, nproc, str
        return
    except Unavailable:
        if client.is_named or detach:
            raise
    from holdfast.cli.local_cluster import LocalCluster

    slots = torchrun.local_nproc(nproc)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-run-", ignore_cleanup_errors=True) as folder,
        LocalCluster(Path(folder), nodes=nnodes, slots=slots) as cluster,
    ):
        note(f"no controller at {client.address}; started one here: {cluster.url}")
        yield cluster.client, str(slots), lambda: cluster.failure


def follow(client: Client, job: str, failure: Callable[[], str]) -> int:
    """Print the job's log until it ends; its exit code. Ctrl-C stops the job, a second one leaves it.

    `failure` tells why a cluster of our own cannot go on, if so; another's may be down for as long as it takes."""
    follower = Follower(client, job)
    follower.start()
    interrupted = asked = False
    while True:
        try:
            if interrupted and not asked:
                asked = True  # within the try: the second Ctrl-C need not wait for the answer
                _ask_to_stop(client)
            line = follower.lines.get(timeout=0.5)
            if line is None:
                break
            _print(line)
        except queue.Empty:
            if failure():
                raise HoldfastError(failure()) from None
        except KeyboardInterrupt:
            if interrupted:
                note(f"left job {job} to itself; `holdfast job` shows it, `holdfast job stop` ends it")
                return 130
            interrupted = True
            note("stopping the job; Ctrl-C again leaves it running")
    if follower.error is not None:
        raise follower.error
    return _exit_code(client, job, interrupted)


def _ask_to_stop(client: Client) -> None:
    try:
        client.stop()
    except HoldfastError as error:
        note(str(error))


def _print(line: Json) -> None:
    stream = sys.stderr if line["stream"] == "err" else sys.stdout
    if line.get("dropped"):
        print(f"[{line['rank']}] ... {line['dropped']} lines left out ...", file=sys.stderr)
    print(f"[{line['rank']}] {line['text']}", file=stream, flush=True)


def _exit_code(client: Client, job: str, interrupted: bool) -> int:
    """What the job ended with. The log may end a moment before the state says so."""
    for delay in Backoff(initial=0.05, cap=0.5, deadline=30.0).plan():
        try:
            found = client.job()
        except Unavailable as error:
            note(str(error))
            found = {}
        if found is None or found.get("id", job) != job:
            raise HoldfastError(f"job {job} is gone: another took its place")
        if found.get("state") in OVER:
            return _report(found, interrupted)
        time.sleep(delay)
    raise Unavailable(f"the log of job {job} ended, and nothing says how the job did")


def _report(found: Json, interrupted: bool) -> int:
    code = found.get("exit_code")
    if found["state"] == "finished":
        return 0 if code is None else int(code)
    reason = f": {found['reason']}" if found.get("reason") else ""
    note(f"job {found['name']} {found['state']}{reason}")
    if interrupted:
        return 130
    return int(code) if code and code > 0 else 1
