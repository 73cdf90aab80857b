"""The cluster at a glance: health, open incidents, job, nodes, and what was, in the lines that a terminal has.

The health of the job is decided by the controller; nothing is judged here.
"""

from rich.console import Console, Group
from rich.text import Text

from holdfast.cli.common import output
from holdfast.cli.common.client import OVER
from holdfast.cli.common.fit import Row, Section, cells, fit, flow, lines_of, single
from holdfast.cli.common.jobs import NO_JOB
from holdfast.cli.job.job import at_risk, spent
from holdfast.cli.look.jobs import job_list

MOST_ROWS = 16
"""Rows of a section where the height is not limited."""
OPEN = ("open", "recovering")
_COLOURS = {"well": "green", "finished": "green", "starting": "cyan", "stopped": "dim"}
_WELL = ("healthy", "spare")
_WORST = ("faulty", "lost", "suspect", "cordoned", "joining")


def overview(found: output.Json, console: Console, height: int | None = None) -> Group:
    """`found`: `models.Status`. At most `height` lines of the console's width."""
    short = height is not None
    incidents = found.get("incidents") or []
    live = [each for each in incidents if each["state"] in OPEN]
    over = [each for each in incidents if each["state"] not in OPEN]
    sections = [
        _health(console, (found.get("job") or {}).get("health"), short),
        _open(console, live, found, short),
        _jobs(console, found),
        _nodes(console, found),
        _recent(over, found),
    ]
    return fit((each for each in sections if each is not None), height, None if short else MOST_ROWS)


def _health(console: Console, health: output.Json | None, short: bool) -> Section | None:
    if not health:
        return None
    lines = health_lines(console, health, most=4 if short else None)
    others = [
        Row(single(f"  also {output.text(o['condition'])}: {output.text(o['sentence'])}")) for o in health["others"]
    ]
    return Section(lines, others, "conditions")


def health_lines(console: Console, health: output.Json, most: int | None = None) -> list[Text]:
    """What it is, what is being done, the next action."""
    colour = "red" if health["needs_person"] else _COLOURS.get(health["condition"], "yellow")
    leads = Text.from_markup(
        f"[bold {colour}]{output.text(health['condition'])}[/]  {output.text(health['sentence'])}", emoji=False
    )
    lines = lines_of(console, leads, most=most)
    rest = []
    if health["doing"]:
        usual = f", usually {output.seconds(health['usual_s'])}" if health["usual_s"] else ""
        rest.append(f"being done: {output.text(health['doing'])}{usual}")
    rest.append(f"next: {output.text(health['action'])}")
    for text in rest:
        lines += lines_of(console, Text.from_markup(text, emoji=False), indent=2, most=2 if most else None)
    return lines


def _open(console: Console, live: list[output.Json], found: output.Json, short: bool) -> Section | None:
    if not live:
        return None
    now = found["now"]
    first, *others = live
    summary = lines_of(console, Text(output.shown(first.get("summary"))), indent=2, most=2 if short else None)
    count = found.get("open_incidents") or len(live)
    rows = [Row(single(f"  {_under_way(each, now)}: {output.text(each.get('summary'))}")) for each in others]
    lead = Text.from_markup(f"[bold]incident[/]  {_under_way(first, now)}", emoji=False)
    head = [*lines_of(console, lead, most=2 if short else None), *summary]
    if count > len(live):  # the status has only the newest
        head.append(single(f"  [dim]{count:,} are open: holdfast incidents[/]"))
    return Section(head, rows, "open incidents")


def _under_way(incident: output.Json, now: float) -> str:
    """Which, since when, what, what is done, and in which phase that is."""
    phase = next((p for p in reversed(incident.get("phases") or []) if p["end"] is None), None)
    stage = f", {output.text(phase['name'])} for {output.seconds(max(now - phase['start'], 0.0))}" if phase else ""
    action = f", {output.text(incident['action'])}" if incident.get("action") else ""
    return (
        f"{output.text(incident['id'])} {output.state(incident['state'])} for "
        f"{output.seconds(max(now - incident['opened'], 0.0))}: {output.text(incident['kind'])} on "
        f"{output.text(incident['culprit'])}{action}{stage}"
    )


def _jobs(console: Console, found: output.Json) -> Section:
    """The newest job, or a list if there are other active jobs."""
    newest = found.get("job")
    if not newest:
        return Section([single(NO_JOB)])
    shown = [job for job in found.get("jobs") or [] if job["state"] not in OVER or job["id"] == newest["id"]]
    if len(shown) < 2:
        return Section(
            [single(f"[bold]job[/]  {_job(newest, found['now'])}"), *flow(console, _facts(newest), indent=2)]
        )
    head, *lines = lines_of(console, job_list(shown), indent=2)
    rows = [Row(line) for line in lines]
    return Section([single("[bold]jobs[/]  `holdfast job --job NAME` shows one"), head], rows, "lines of jobs")


def _job(job: output.Json, now: float) -> str:
    ended = "" if job.get("exit_code") is None else f", exit code {job['exit_code']}"
    restarts = job.get("restarts", 0)
    since = output.when(job.get("ended_at") or job.get("started_at") or job.get("submitted_at"), now)
    return (
        f"{output.text(job['name'])} ({output.text(job['id'])}), {output.state(job['state'])}{ended}, since {since}, "
        f"generation {job['generation']}, {restarts} restart{'' if restarts == 1 else 's'}"
    )


def _facts(job: output.Json) -> list[str]:
    of = f" of {job['max_steps']:,}" if job.get("max_steps") else ""
    of_life = job.get("step_of_life")
    sizes = job.get("sizes")
    mesh = f" (pp {sizes[0]}, dp {sizes[1]}, tp {sizes[2]})" if sizes else ""
    facts = [
        f"step {job.get('step', -1):,}{of}" if of_life is None else f"step {of_life:,} of this life",
        f"{output.seconds(job.get('step_seconds'))} a step" if job.get("step_seconds") is not None else "",
        f"loss {output.number(job['loss'], 4)}" if job.get("loss") is not None else "",
        f"{output.number(job['tokens_per_s'], 0)} tokens/s" if job.get("tokens_per_s") is not None else "",
        f"MFU {output.percent(job['mfu'])}" if job.get("mfu") is not None else "",
        f"{job['world_size']:,} ranks on {job['nnodes']:,} nodes{mesh}",
        f"goodput {output.percent(job.get('goodput'))} of {spent(job.get('time'))}",
        f"a fault now {costs}" if (costs := at_risk(job.get("at_risk"))) != "-" else "",
    ]
    return [fact for fact in facts if fact]


def _nodes(console: Console, found: output.Json) -> Section:
    counts = ", ".join(f"{n:,} {output.state(word)}" for word, n in (found.get("counts") or {}).items() if n)
    order = {word: i for i, word in enumerate(_WORST)}
    doubtful = [(name, word) for name, word in (found.get("nodes") or {}).items() if word not in _WELL]
    doubtful.sort(key=lambda node: order.get(node[1], len(order)))
    rows = cells(console, [f"{output.text(name)} {output.state(word)}" for name, word in doubtful], indent=2)
    return Section([single(f"[bold]nodes[/]  {counts or 'none'}")], rows, "nodes")


def _recent(over: list[output.Json], found: output.Json) -> Section:
    rows = [Row(single(f"  {_past(each, found['now'])}: {output.text(each.get('summary'))}")) for each in over]
    return Section([single(f"[bold]incidents[/]  {found.get('open_incidents', 0):,} open")], rows, "incidents")


def _past(incident: output.Json, now: float) -> str:
    action = f", {output.text(incident['action'])}" if incident.get("action") else ""
    back = f", back after {output.seconds(incident['recover_s'])}" if incident.get("recover_s") is not None else ""
    state = "" if incident["state"] == "closed" else f", {output.state(incident['state'])}"
    what = f"{output.text(incident['kind'])} on {output.text(incident['culprit'])}"
    return f"{output.when(incident.get('opened'), now)}  {output.text(incident['id'])}  {what}{action}{state}{back}"
