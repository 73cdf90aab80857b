"""`holdfast jobs`: all jobs, in the order of the queue."""

from rich.table import Table

from holdfast.cli.common import output
from holdfast.cli.common.client import OVER, Client
from holdfast.cli.common.jobs import NO_JOB
from holdfast.cli.common.options import Json, with_client


@with_client
def jobs(client: Client, as_json: Json = False) -> int:
    """List the jobs: the queue in order, then those that ended."""
    found = client.jobs()
    if as_json:
        output.print_json(found)
    elif not found:
        output.say(NO_JOB)
    else:
        output.out().print(job_list(found))
    return 0


def job_list(found: list[output.Json]) -> Table:
    """`found`: as GET /jobs has them. A job that ended has no place in the queue. Where jobs share nodes, with whom."""
    names = {job["id"]: str(job["name"]) for job in found}
    beside = {job["id"]: ", ".join(names.get(id, id) for id in job.get("shares_with") or []) for job in found}
    shared = ["BESIDE"] if any(beside.values()) else []
    table = output.table(">QUEUE", "NAME", "ID", "STATE", ">PRIORITY", ">NODES", *shared, ">STEP", "SINCE", "WHY")
    place = 0
    for job in found:
        is_over = job["state"] in OVER
        place += not is_over
        table.add_row(
            "-" if is_over else str(place),
            output.text(job["name"]),
            output.text(job["id"]),
            output.state(job["state"]),
            f"{job['priority']}{'+' if job.get('preempt') else ''}",
            _nodes(job),
            *([output.text(beside[job["id"]])] if shared else []),
            _step(job),
            output.clock(_since(job)),
            output.text(job.get("reason")),
        )
    return table


def _nodes(job: output.Json) -> str:
    """The nodes that a job has, of those that it needs."""
    held = len(job["nodes"])
    return str(held) if held == job["nnodes"] else f"{held}/{job['nnodes']}"


def _step(job: output.Json) -> str:
    of_life = job.get("step_of_life")
    if of_life is not None:
        return f"{of_life} of this life" if of_life >= 0 else "-"
    done = "-" if job["step"] < 0 else str(job["step"])
    return f"{done}/{job['max_steps']}" if job.get("max_steps") else done


def _since(job: output.Json) -> float | None:
    """The time of its end, else of its start, else of its submission."""
    if job["state"] in OVER:
        return job.get("ended_at")
    return job.get("submitted_at") if job["state"] == "pending" else job.get("started_at") or job.get("submitted_at")
