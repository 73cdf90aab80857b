"""`holdfast schedules`: all pipeline schedules side by side, in simulated time, and a picture of one."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest, parse_bytes
from holdfast.cli.common import completion, output
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:  # the table of schedules is imported when the command runs
    from holdfast.trainer.pipeline.comparison import Comparison, Estimate, Memory, Pipeline

MOST_ACTIONS = 60_000
"""Of a plan: a few seconds for each schedule."""
_MOST_BYTES = 10**18


def _time(least: float, help: str) -> Any:
    return typer.Option(metavar="X", min=least, max=1e6, help=help)


def _size(help: str) -> Any:
    return typer.Option(metavar="SIZE", help=help)


def schedules(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only this one, rank by rank.", autocompletion=completion.schedules)
    ] = "",
    pp: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Pipeline ranks.")] = 4,
    micro_batches: Annotated[
        int, typer.Option(metavar="N", min=1, max=65_536, help="Micro-batches in a step of one replica.")
    ] = 8,
    chunks: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=64, help="Stages per rank where the schedule leaves the choice; 0: its default."
        ),
    ] = 0,
    forward: Annotated[float, _time(1e-6, "Time of a forward through a rank's layers, in any unit.")] = 1.0,
    backward: Annotated[float, _time(1e-6, "Time of a backward, in the same unit.")] = 2.0,
    message: Annotated[float, _time(0.0, "Time of a message between two ranks, in the same unit.")] = 0.0,
    device: Annotated[
        str,
        typer.Option(
            metavar="cuda|cpu",
            help="Whose messages: NCCL does those of two ranks in one order, one at a time; gloo does not.",
        ),
    ] = "cuda",
    activation_bytes: Annotated[
        str, _size("Activations that a rank keeps of one micro-batch until its backward: 1GB.")
    ] = "",
    weight_bytes: Annotated[
        str, _size("Parameters, gradients and optimizer state of a rank's layers, each layer held once.")
    ] = "",
    message_bytes: Annotated[str, _size("One message; without it, messages are counted.")] = "",
    memory: Annotated[
        str, _size("Limit of a rank for activations and weights; marks the best schedule that fits.")
    ] = "",
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE", help="Write the timeline of NAME to FILE as SVG.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare all pipeline schedules: time, bubble, activations, weights and messages of a simulated step.

    The fastest comes first; impossible schedules follow with the reason. Activations held, weights and messages are
    those of the rank with the most. HELD 23 x 1/2: of 23 micro-batches, each on one of the rank's two stages.
    """
    from holdfast.plan.schedules.table import SCHEDULES
    from holdfast.trainer.pipeline import comparison
    from holdfast.trainer.pipeline.transfers import POSTED_AHEAD

    if name and name not in SCHEDULES:
        raise UsageError(f"there is no schedule {name!r}{nearest(name.lower()[:100], SCHEDULES)}")
    if draw is not None and not name:
        raise UsageError("--draw shows one schedule: name it, as in `holdfast schedules 1f1b --draw 1f1b.svg`")
    if device not in POSTED_AHEAD:
        raise UsageError(f"--device must be {' or '.join(POSTED_AHEAD)}, not {device!r}")
    sizes = Sizes(activation_bytes, weight_bytes, message_bytes, memory)
    pipeline = comparison.Pipeline(pp, micro_batches, chunks, forward, backward, message, device)
    names = (name,) if name else tuple(SCHEDULES)
    if (count := comparison.actions(pipeline, names)) > MOST_ACTIONS:
        raise UsageError(
            f"{pp:,} ranks x {micro_batches:,} micro-batches are {count:,} computations in a step, "
            f"{MOST_ACTIONS:,} at most are simulated; give fewer --micro-batches: bubbles shrink as 1/N"
        )
    with progress("simulating") as report:
        found = comparison.compare(pipeline, names, report)
    if name and found.impossible:
        raise UsageError(f"{name} {found.impossible[name]}")
    if draw is not None:
        _draw(draw, found.estimates[0], pipeline)
    if as_json:
        output.print_json(_document(found, pipeline, sizes, draw))
    elif draw is None:
        _print(found, sizes, bool(name))
        if message:
            output.say(_assumed(device))
    return 0


class Sizes:
    """The sizes that were given, in bytes; None for the others. UsageError for what is no size."""

    def __init__(self, activations: str, weights: str, message: str, memory: str) -> None:
        self.activations = _bytes("--activation-bytes", activations)
        self.weights = _bytes("--weight-bytes", weights)
        self.message = _bytes("--message-bytes", message)
        self.limit = _bytes("--memory", memory)
        if self.limit is not None and (self.activations is None or self.weights is None):
            raise UsageError("--memory needs --activation-bytes and --weight-bytes: what is to fit under it")

    @property
    def memory(self) -> "Memory":
        """What is not given counts as nothing."""
        from holdfast.trainer.pipeline.comparison import Memory

        return Memory(self.activations or 0, self.weights or 0)

    def best(self, found: "Comparison") -> "Estimate | None":
        return None if self.limit is None else found.best(self.memory, self.limit)


def _bytes(option: str, text: str) -> int | None:
    if not text:
        return None
    try:
        size = parse_bytes(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} must be a size such as 40GB, not {text!r}") from None
    if size > _MOST_BYTES:
        raise UsageError(f"{option} must be at most {output.size(_MOST_BYTES)}, not {text!r}")
    return size


def _draw(path: Path, one: "Estimate", pipeline: "Pipeline") -> None:
    from holdfast.cli.study.timeline_svg import svg

    title = f"{one.schedule.name}: {one.ranks} ranks, {pipeline.micro_batches} micro-batches, "
    title += f"makespan {one.makespan:.6g}, bubble {one.bubble:.1%}"
    unit = f"forward {pipeline.forward:g}, backward {pipeline.backward:g}, message {pipeline.message:g}"
    picture = svg(one.plan, one.timeline, title, unit).encode()
    try:
        # Does not wait for somebody to read a pipe.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        os.set_blocking(file, True)
        with open(file, "wb") as out:
            out.write(picture)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    output.note(f"wrote {path}, {output.size(len(picture))}: open it in a browser")


# --- for people ------------------------------------------------------------------------------------------------


def _print(found: "Comparison", sizes: Sizes, by_rank: bool) -> None:
    table = output.table("SCHEDULE", ">MAKESPAN", ">BUBBLE", *_memory_head(sizes))
    best = sizes.best(found)
    for one in found.estimates:
        values = [*_memory_cells(one, sizes, None)]
        if sizes.limit is not None:
            fits = one.needs(sizes.memory) <= sizes.limit
            values.append("[green]best[/]" if one is best else "yes" if fits else "[red]no[/]")
        table.add_row(one.schedule.name, f"{one.makespan:,.6g}", output.percent(one.bubble), *values)
    console = output.out()
    if found.estimates:
        console.print(table)
    for name, reason in found.impossible.items():
        output.say(f"{name} is impossible: {reason}")
    if sizes.limit is not None and best is None and found.estimates:
        least = min(found.estimates, key=lambda one: one.needs(sizes.memory))
        needed = output.size(least.needs(sizes.memory))
        output.say(f"none fits in {output.size(sizes.limit)}: {least.schedule.name} needs the least, {needed}")
    if by_rank:
        console.print()
        console.print(_ranks(found.estimates[0], sizes))


def _assumed(device: str) -> str:
    """What the figures take for granted about messages."""
    from holdfast.trainer.pipeline.transfers import ONE_AT_A_TIME, POSTED_AHEAD

    backend = "NCCL" if device == "cuda" else "gloo"
    ahead = POSTED_AHEAD[device]
    posted = f"{ahead} computations before it is needed" if ahead else "where both ranks' lists have it"
    turns = "one at a time between two ranks, both directions" if ONE_AT_A_TIME[device] else "beside each other"
    return f"messages as over {backend} (--device {device}): a receive is posted {posted}; messages go {turns}"


def _memory_head(sizes: Sizes) -> list[str]:
    head = [">HELD"]
    head += [">ACTIVATIONS"] * (sizes.activations is not None)
    head += [">WEIGHTS", ">SENT"]
    return head + [">FITS"] * (sizes.limit is not None)


def _memory_cells(one: "Estimate", sizes: Sizes, rank: int | None) -> list[str]:
    """Of a rank, or of the one with the most."""

    def of(values: tuple[float, ...]) -> float:
        return max(values) if rank is None else values[rank]

    held = of(one.held)
    cells = [f"{held:g} x 1/{one.chunks}" if one.chunks > 1 else f"{held:g}"]
    if sizes.activations is not None:
        cells.append(output.size(of(one.activation_bytes(sizes.memory))))
    weights, sent = of(one.copies), of(one.messages)
    cells.append(f"{weights:g} x" if sizes.weights is None else output.size(weights * sizes.weights))
    cells.append(f"{sent:,.0f}" if sizes.message is None else output.size(sent * sizes.message))
    return cells


def _ranks(one: "Estimate", sizes: Sizes) -> Table:
    head = [column for column in _memory_head(sizes) if column != ">FITS"]
    table = output.table(">RANK", ">BUSY", ">BUBBLE", *head)
    for rank, busy in enumerate(one.timeline.busy):
        bubble = output.percent(one.timeline.bubble[rank])
        table.add_row(str(rank), f"{busy:,.6g}", bubble, *map(escape, _memory_cells(one, sizes, rank)))
    return table


# --- for programs ----------------------------------------------------------------------------------------------


def _document(found: "Comparison", pipeline: "Pipeline", sizes: Sizes, drawn: Path | None) -> dict[str, Any]:
    from holdfast.trainer.pipeline.transfers import ONE_AT_A_TIME, POSTED_AHEAD

    best = sizes.best(found)
    return {
        "pp": pipeline.ranks,
        "micro_batches": pipeline.micro_batches,
        "forward": pipeline.forward,
        "backward": pipeline.backward,
        "message": pipeline.message,
        "device": pipeline.device,
        "posted_ahead": POSTED_AHEAD[pipeline.device],
        "one_at_a_time": ONE_AT_A_TIME[pipeline.device],
        "schedules": [_entry(one, sizes) for one in found.estimates],
        "impossible": found.impossible,
        "best": best and best.schedule.name,
        "drawn": drawn and str(drawn),
    }


def _entry(one: "Estimate", sizes: Sizes) -> dict[str, Any]:
    """Values by rank are lists."""
    sent = [None if sizes.message is None else count * sizes.message for count in one.messages]
    return {
        "schedule": one.schedule.name,
        "chunks": one.chunks,
        "makespan": one.makespan,
        "bubble": one.bubble,
        "busy": one.timeline.busy,
        "held": one.held,
        "weight_copies": one.copies,
        "messages": one.messages,
        "activation_bytes": None if sizes.activations is None else one.activation_bytes(sizes.memory),
        "weight_bytes": None if sizes.weights is None else one.weight_bytes(sizes.memory),
        "sent_bytes": None if sizes.message is None else sent,
        "fits": None if sizes.limit is None else one.needs(sizes.memory) <= sizes.limit,
    }
