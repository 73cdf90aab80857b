"""The demo's output during the run and at its end. On standard error; standard output is for --json."""

from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from holdfast.cli.common import output
from holdfast.cli.common.fit import lines_of, single
from holdfast.cli.demo.plan import DemoPlan
from holdfast.cli.job.summary import summary
from holdfast.cli.look.top import plain_table
from holdfast.cli.look.top_rows import rank_rows

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
        self.at_risk: Json | None = None
        """When the job was last seen running."""

    def __enter__(self) -> Self:
        pp, dp, tp = self._plan.sizes
        spares = f"{self._plan.spares} spare, " if self._plan.spares else ""
        self._console.print(
            f"[bold]holdfast demo[/]: {self._plan.nodes} nodes x {self._plan.nproc} workers, {spares}"
            f"pp {pp} dp {dp} tp {tp}, {self._plan.steps} steps"
        )
        self._console.print(f"the page: {self._url}")
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
        self.at_risk = job.get("at_risk") or self.at_risk
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
        width, height = self._console.size
        lines = lines_of(self._console, self._numbers(job))
        bar = ProgressBar(total=self._plan.steps, completed=job["step"] + 1, width=min(60, width))
        rows = rank_rows(ranks, None, [], str(job["id"]))
        room = max(height - len(lines) - 4, 1)  # bar, head, address, the count of the rest
        shown = rows if len(rows) <= room + 1 else rows[:room]
        more = [Text(f"… {len(rows) - len(shown)} more ranks", style="dim")] if len(shown) < len(rows) else []
        return Group(
            *lines, *lines_of(self._console, bar), plain_table(shown, width), *more, single(f"[dim]{self._url}[/]")
        )


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


def print_summary(job: Json, steps: Json, found: Json, wanted: int, incidents: list[Json], risk: Json | None) -> None:
    console = output.err()
    done = found["steps"]
    said = f"[bold]{f'all {wanted}' if len(done) == wanted else f'{len(done)} of {wanted}'} steps[/]"
    if done:
        seconds = sum(row["seconds"] for row in done if row["seconds"] is not None)
        tokens = sum(count for count in steps["tokens"] if count is not None)
        rate = output.number(tokens / seconds if seconds else None, 0)
        first, last = (output.number(row["loss"], 4) for row in (done[0], done[-1]))
        said += f", loss {first} -> {last}, {rate} tokens/s"
    console.print(f"\n{said}")
    for line in summary(job, incidents, risk):
        console.print(output.text(line))
