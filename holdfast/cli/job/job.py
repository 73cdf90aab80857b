"""`holdfast job` shows a job; `holdfast job stop` stops it, `holdfast job restart` restarts it."""

from typing import Annotated

import typer
from rich.table import Table

from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.jobs import JobOption, ShownJob, active_job, shown_job
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.usage import example

_LEVELS = {"node": "in nodes", "switch": "under a switch", "pod": "between switches of a pod", "core": "between pods",
           "nics": "between types of NIC"}  # fmt: skip

app = typer.Typer(help="Show, restart or stop a job.", invoke_without_command=True)


@app.callback()
@with_client
def job(client: Client, context: typer.Context, job: ShownJob = "", as_json: Json = False) -> int:
    """Show, restart or stop a job."""
    if context.invoked_subcommand is not None:
        if job:
            raise UsageError(f"write --job behind {context.invoked_subcommand}: it is that command's option")
        return 0
    found = shown_job(client, job)
    if as_json:
        output.print_json(found)
    else:
        output.out().print(job_table(found))
    return 0


@app.command(epilog=example("holdfast job stop --grace 60"))
@with_client
def stop(
    client: Client,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=3600, help="Time for the workers to exit cleanly.")
    ] = 10.0,
    job: JobOption = "",
    as_json: Json = False,
) -> int:
    """Stop an active job. One that waits in the queue leaves it."""
    found = active_job(client, job)
    client.stop(grace, found["id"])
    return _done(found, "stopping", as_json)


@app.command(epilog=example("holdfast job restart --dump"))
@with_client
def restart(
    client: Client,
    dump: Annotated[bool, typer.Option("--dump", help="Store the stacks of all workers with the incident.")] = False,
    job: JobOption = "",
    as_json: Json = False,
) -> int:
    """Restart a running job from its newest complete state. It does not count towards the restart limits."""
    found = active_job(client, job)
    client.restart(dump, found["id"])
    return _done(found, "restarting", as_json)


def _done(job: output.Json, what: str, as_json: bool) -> int:
    if as_json:
        output.print_json({"id": job["id"], "name": job["name"], "request": what})
    else:
        output.say(f"{job['name']} ({job['id']}): {what}")
    return 0


def job_table(found: output.Json) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    program = found.get("program") or {}
    target = f"-m {program.get('target')}" if program.get("module") else program.get("target", "")
    ended = "" if found.get("exit_code") is None else f", exit code {found['exit_code']}"
    reason = f": {output.text(found['reason'])}" if found.get("reason") else ""
    sizes = found.get("sizes")
    rows = {
        "job": f"{output.text(found['name'])} ({output.text(found['id'])})",
        "state": f"{output.state(found['state'])}{ended}{reason}",
        "priority": f"{found.get('priority', 0)}" + (", may preempt" if found.get("preempt") else ""),
        **share_row(found),
        **pause_row(found.get("pause")),
        "program": output.text(" ".join([str(target), *program.get("args", [])])),
        "workers": f"{found['world_size']} on {found['nnodes']} nodes"
        + (f" (pp {sizes[0]}, dp {sizes[1]}, tp {sizes[2]})" if sizes else ""),
        "generation": f"{found['generation']} ({found.get('restarts', 0)} restarts)",
        "step": step_text(found),
        "loss": output.number(found.get("loss"), 4),
        "tokens/s": output.number(found.get("tokens_per_s"), 0),
        "step time": output.seconds(found.get("step_seconds")) + beside_plan(found.get("planned")),
        **slower_row(found.get("planned")),
        **off_plan_row(found.get("traffic")),
        "MFU": output.number(found.get("mfu"), 3),
        "goodput": output.percent(found.get("goodput")),
        "time": spent(found.get("time")),
        **({"it said last": output.text(found["progress"])} if found.get("progress") else {}),
        "a fault now": at_risk(found.get("at_risk")),
        "started": output.clock(found.get("started_at")),
        "ended": output.clock(found.get("ended_at")),
        "placed": ", ".join(
            f"{output.text(part['node'])}: {output.spans(part['ranks'])}" for part in found.get("assignment") or []
        )
        or "-",
        **order_rows(found.get("placement")),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def order_rows(found: output.Json | None) -> dict[str, str]:
    """How far a step's traffic goes, by level, and how far in the order of names; empty if nothing is known."""
    if not found:
        return {}

    def much(value: float) -> str:
        return output.size(int(value)) if found["in_bytes"] else output.percent(value)

    levels = [f"{_LEVELS[one['level']]} {much(one['total'])} ({much(one['naive'])})" for one in found["levels"]]
    if found["slow"] or found["naive_slow"]:
        levels.append(f"over slow links {much(found['slow'])} ({much(found['naive_slow'])})")
    what = "bytes of a step" if found["in_bytes"] else "shares of a step's bytes, in usual proportions"
    return {"traffic": f"{', '.join(levels)}: {what} (with nodes in the order of names)"}


def beside_plan(planned: output.Json | None) -> str:
    """What a step was planned to take, behind what it takes."""
    if not planned:
        return ""
    more = f" ({planned['ratio'] - 1:+.0%})" if planned.get("ratio") is not None else ""
    return f", planned {output.seconds(planned['step_seconds'])}{more}"


def slower_row(planned: output.Json | None) -> dict[str, str]:
    """Since when steps are slower than planned, and where; empty where they are not."""
    if not planned or planned.get("slower_since") is None:
        return {}
    where = f": {output.text(planned['where'])}" if planned.get("where") else ""
    return {"slower than planned": f"since {output.clock(planned['slower_since'])}{where}"}


def off_plan_row(traffic: output.Json | None) -> dict[str, str]:
    """Nodes that send far less or more than the layout says; empty where none does."""
    lasting = (traffic or {}).get("off_plan") or []
    if not lasting:
        return {}
    return {
        "off its plan": "; ".join(f"since {output.clock(one['since'])}: {output.text(one['text'])}" for one in lasting)
    }


def step_text(found: output.Json) -> str:
    """The newest step, and of what."""
    of_life, step = found.get("step_of_life"), found.get("step", -1)
    if of_life is not None:
        return f"{of_life} of this life ({step + 1} steps in all attempts: which step of the job it is, is not known)"
    of = f" of {found['max_steps']}" if found.get("max_steps") else ""
    return f"{step}{of}" + (" (counted: the program numbers none)" if found.get("steps_counted") else "")


def pause_row(found: output.Json | None) -> dict[str, str]:
    """The reason for a pause; empty without one."""
    if not found:
        return {}
    limit = f"; restarted at {output.seconds(found['limit_seconds'])}" if found.get("limit_seconds") else ""
    usual = f", usually up to {output.seconds(found['usual_seconds'])} here" if found.get("usual_seconds") else ""
    place = f" at {output.text(found['place'])}" if found.get("place") else ""
    said = f"{output.text(found['text'])}{place}"
    return {"paused": f"{found['life']} for {output.seconds(found['seconds'])}: {said}{usual}{limit}"}


def share_row(found: output.Json) -> dict[str, str]:
    """What a worker may use of a device that jobs share, and the other jobs on its nodes; empty if it shares none."""
    size = found.get("share_bytes")
    if not size:
        return {}
    others = ", ".join(found.get("shares_with") or [])
    beside = f"beside {output.text(others)}" if others else "alone on its nodes"
    return {"shares": f"{output.size(size)} a worker, {beside}"}


def spent(found: output.Json | None) -> str:
    """The job's time: productive, unsaved, queued, and losses by size."""
    if not found or not found["wall"]:
        return "-"
    lost = sorted(found["lost"].items(), key=lambda item: -(item[1] or 0.0))
    parts = [(name, found.get(name, 0.0)) for name in ("productive", "unsaved", "queued")] + lost
    shown = [f"{name} {output.seconds(value)}" for name, value in parts if value is not None and value >= 0.05]
    shown += [f"{name} unknown" for name, value in parts if value is None]
    return f"{output.seconds(found['wall'])}: {', '.join(shown)}"


def at_risk(found: output.Json | None) -> str:
    """Work at risk, by the part that fails."""
    known = [f"{what} {output.seconds(found[what])}" for what in ("worker", "node", "job") if found and found[what]]
    return f"costs {', '.join(known)} of work" if known else "-"
