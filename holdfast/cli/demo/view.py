"""The demo's output during the run and at its end. On standard error; standard output is for --json."""

from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar

from holdfast.cli.common import output
from holdfast.cli.demo.plan import DemoPlan
from holdfast.cli.job.job import spent

Json = output.Json

EVERY = 10
"""Steps between lines without a terminal."""


class View:
    """A live panel on a terminal, plain lines elsewhere; incidents are lines of their own in both."""

    def __init__(self, plan: DemoPlan, url: str) -> None:
        self._plan, self._url = plan, url
        self._console = output.err()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._reported: dict[str, str] = {}
        self._last = -1

    def __enter__(self) -> Self:
        pp, dp, tp = self._plan.sizes
        spares = f"{self._plan.spares} spare, " if self._plan.spares else ""
        self._console.print(
            f"[bold]holdfast demo[/]: {self._plan.nodes} nodes x {self._plan.nproc} workers, {spares}"
            f"pp {pp} dp {dp} tp {tp}, {self._plan.steps} steps. The page: {self._url}"
        )
        for fault in [*self._plan.faults, *self._plan.controller_kills]:
            self._console.print(f"armed: {fault}")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with suppress(OSError):  # the terminal is closed
            if self._live.is_started:
                self._live.stop()

    def note(self, text: str) -> None:
        self._console.print(output.text(text))

    def update(self, job: Json, ranks: Json, incidents: list[Json]) -> None:
        for incident in reversed(incidents):
            self._report(incident)
        if self._live.is_started:
            self._live.update(self._panel(job, ranks), refresh=True)
        elif job["step"] >= self._last + EVERY or (job["step"] == self._plan.steps - 1 != self._last):
            self._last = job["step"]
            self._console.print(self._numbers(job))

    def _report(self, incident: Json) -> None:
        line = f"incident {incident['id']} {incident['state']}: {output.incident_line(incident)}"
        if self._reported.get(str(incident["id"])) != line:
            self._reported[str(incident["id"])] = line
            self._console.print(f"[yellow]{output.text(line)}[/]")

    def _numbers(self, job: Json) -> str:
        return (
            f"step {job['step'] + 1}/{self._plan.steps}  loss {output.number(job.get('loss'), 4)}  "
            f"{output.number(job.get('tokens_per_s'), 0)} tokens/s  {output.state(job['state'])}  "
            f"generation {job['generation']}"
        )

    def _panel(self, job: Json, ranks: Json) -> RenderableType:
        table = output.table(">RANK", "NODE", "STATE", "PHASE", ">STEP", "DOING", ">STEP TIME")
        for i, rank in enumerate(ranks.get("rank") or []):
            table.add_row(
                str(rank),
                *(
                    _entry(ranks, column, plural, i)
                    for column, plural in (("node", "nodes"), ("state", "states"), ("phase", "phases"))
                ),
                str(ranks["step"][i] if ranks["step"][i] is not None else "-"),
                _entry(ranks, "operation", "operations", i),
                output.seconds(ranks["step_seconds"][i]),
            )
        bar = ProgressBar(total=self._plan.steps, completed=job["step"] + 1, width=60)
        return Group(self._numbers(job), bar, table, f"[dim]{self._url}[/]")


def _entry(ranks: Json, column: str, table: str, i: int) -> str:
    index = ranks[column][i]
    words = ranks[table]
    word = words[index] if index is not None and 0 <= index < len(words) else ""
    return output.state(word) if table in ("states", "phases") else output.text(word)


def result(job: Json | None, steps: Json, incidents: list[Json]) -> Json:
    """The final object of `demo --json`. A repeated step counts once, with its last values."""
    rows = {
        step: {"step": step, "loss": loss, "seconds": seconds}
        for step, loss, seconds in zip(steps["step"], steps["loss"], steps["seconds"], strict=True)
    }
    keys = ("id", "kind", "culprit", "detect_s", "recover_s", "source", "action")
    return {
        "steps": [rows[step] for step in sorted(rows)],
        "incidents": [{key: incident.get(key) for key in keys} for incident in reversed(incidents)],
        "goodput": (job or {}).get("goodput"),
    }


def print_summary(job: Json, steps: Json, found: Json, wanted: int) -> None:
    console = output.err()
    done = found["steps"]
    complete = f"all {wanted} steps" if len(done) == wanted else f"{len(done)} of {wanted} steps"
    console.print(f"\n[bold]{complete}[/], job {output.state(job['state'])}, {job.get('restarts', 0)} restarts")
    if job.get("reason") and job["state"] != "finished":
        console.print(output.text(job["reason"]))
    if done:
        seconds = sum(row["seconds"] for row in done if row["seconds"] is not None)
        tokens = sum(count for count in steps["tokens"] if count is not None)
        rate = output.number(tokens / seconds if seconds else None, 0)
        first, last = (output.number(row["loss"], 4) for row in (done[0], done[-1]))
        console.print(f"loss {first} -> {last}, {rate} tokens/s, goodput {output.percent(found['goodput'])}")
        console.print(f"time: {spent(job.get('time'))}")
    if found["incidents"]:
        table = output.table("INCIDENT", "KIND", "CULPRIT", ">DETECTED", ">RECOVERED", "STATE FROM", "ACTION")
        for one in found["incidents"]:
            table.add_row(
                *(output.text(one[key]) for key in ("id", "kind", "culprit")),
                output.seconds(one["detect_s"]),
                output.seconds(one["recover_s"]),
                *(output.text(one[key]) for key in ("source", "action")),
            )
        console.print(table)
    else:
        console.print("no incidents")
