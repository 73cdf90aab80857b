"""What is printed at the end of a job: what it did, what happened, where its time went, and how it stands. Pure.

How it stands, who is at fault, what is lost and what to do is the health of the job: nothing is judged here.
"""

from collections.abc import Sequence

from holdfast.cli.common import output
from holdfast.cli.job.job import at_risk, spent

Json = output.Json

MOST_INCIDENTS = 10


def summary(job: Json, incidents: Sequence[Json], risk: Json | None) -> list[str]:
    """Lines without markup; the health of the job is last, where a reader looks first.

    `incidents`: newest first. `risk`: the work at risk when the job was last seen running; None: it was not seen.
    """
    return [*_figures(job), *_incidents(incidents), *_faults_left(job), *_risk(risk), *health_lines(job)]


def _faults_left(job: Json) -> list[str]:
    """A drill that did not take place proves nothing: its step was never reached, or no controller was up to see it."""
    return [f"not injected: {fault}" for fault in job.get("faults_left", ())]


def health_lines(job: Json) -> list[str]:
    """Why it ended as it did, the health of the job, and the next action if there is one."""
    health, reason, sentence = job["health"], job.get("reason") or "", job["health"]["sentence"]
    why = [f"the reason: {reason}"] if reason and reason not in sentence and job["state"] != "finished" else []
    if sentence.lower().startswith(job["state"]):  # "Failed: rank 3 ..."
        said = f"job {job['name']} {sentence[0].lower()}{sentence[1:]}"
    else:
        said = f"job {job['name']} {job['state']}: {sentence}"
    return [*why, said, *([f"next: {health['action']}"] if health["needs_person"] else [])]


def _figures(job: Json) -> list[str]:
    done, restarts, last = job["step"] + 1, job.get("restarts", 0), job["generation"]
    of_life = job.get("step_of_life")
    of = f" of {job['max_steps']:,}" if job.get("max_steps") else ""
    steps = (
        f"{done:,}{of} steps" if of_life is None else f"{done:,} steps in all attempts ({of_life + 1:,} of this life)"
    )
    lines = [
        f"{steps}, {_many(restarts, 'restart')}, {_many(last, 'generation')}"
        + (f", loss {output.number(job['loss'], 4)}" if job.get("loss") is not None else "")
    ]
    if job.get("time") and job["time"]["wall"]:
        goodput = f"goodput {output.percent(job['goodput'])} of " if job.get("goodput") is not None else "time: "
        lines.append(f"{goodput}{spent(job['time'])}")
    return lines


def _incidents(incidents: Sequence[Json]) -> list[str]:
    if not incidents:
        return ["no incidents"]
    lines = [_incident(one) for one in reversed(incidents[:MOST_INCIDENTS])]
    more = len(incidents) - MOST_INCIDENTS
    hint = next((f"hint: {one['hint']}" for one in incidents if one.get("hint")), "")
    return [*([f"{_many(more, 'earlier incident')}"] if more > 0 else []), *lines, *([hint] if hint else [])]


def _incident(one: Json) -> str:
    """What an agent says of its node is all of such an incident: nothing was done about it."""
    is_said = one["kind"] == "agent" and one.get("action") == "alert" and one.get("summary")
    return f"incident {one['id']}: " + (f"agent on {one['summary']}" if is_said else output.incident_line(one))


def _risk(risk: Json | None) -> list[str]:
    costs = at_risk(risk)
    return [] if costs == "-" else [f"a fault shortly before the end would have cost: {costs.removeprefix('costs ')}"]


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
