"""`holdfast simulate`: the controller's own decisions in a simulated cluster."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.cli.common import output
from holdfast.cli.common.bounds import check_world
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import Progress, progress

if TYPE_CHECKING:
    from holdfast.controller.simulation.run import SimulationOutcome

Nodes = Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Nodes that train.")]
Days = Annotated[float, typer.Option(metavar="DAYS", min=0.01, max=3650.0, help="Simulated time in days.")]


def _seconds(least: float, help: str) -> Any:
    return typer.Option(metavar="SECONDS", min=least, max=86_400.0, help=help)


def simulate(
    nodes: Nodes = 64,
    spares: Annotated[int, typer.Option(metavar="N", min=0, max=10_000, help="Spare nodes.")] = 4,
    gpus: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="GPUs (and workers) per node.")] = 8,
    days: Days = 7.0,
    rates: Annotated[
        str, typer.Option(metavar="NAME", help="Fault rates: llama3, megascale or byterobust.")
    ] = "llama3",
    times: Annotated[float, typer.Option(metavar="X", min=0.0, max=1e6, help="Factor on the fault rates.")] = 1.0,
    link_faults: Annotated[
        float,
        typer.Option(
            metavar="X", min=0.0, max=1e7, help="Faults of the network between nodes, in units of HPN's rate per NIC."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=1 << 53, help="Random seed; the same seed gives the same run.")
    ] = 1,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Number of runs, with this seed and the following ones.")
    ] = 1,
    step_seconds: Annotated[float, _seconds(0.1, "Step time.")] = 10.0,
    start_seconds: Annotated[float, _seconds(0.0, "Time to start workers.")] = 0.6,
    restore_seconds: Annotated[float, _seconds(0.0, "Time to restore the state.")] = 0.6,
    checkpoint_seconds: Annotated[float, _seconds(1.0, "Time between checkpoints.")] = 600.0,
    shrink: Annotated[bool, typer.Option("--shrink", help="The job may continue with half of its nodes.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Compare with manual recovery and with torchrun.")] = False,
    as_json: Json = False,
) -> int:
    """Run the controller's own code in virtual time, with virtual nodes that fail at published rates.

    Deterministic by seed. If an invariant fails, it prints the command to repeat the run and exits with 1.
    """
    require("controller", "numpy")
    from holdfast.controller.simulation import run as simulation
    from holdfast.controller.simulation.faults import RATES
    from holdfast.controller.simulation.hosts import ClusterShape

    if rates not in RATES:
        raise UsageError(f"--rates must be one of {', '.join(RATES)}, not {rates!r}")
    check_world(nodes, gpus)
    shape = ClusterShape(
        nodes=nodes, spares=spares, gpus=gpus, step=step_seconds, start=start_seconds, restore=restore_seconds,
        checkpoint=checkpoint_seconds, shrinks=shrink,
    )  # fmt: skip
    rate = RATES[rates] * times
    found: list[SimulationOutcome] = []
    for one in range(seed, seed + seeds):
        try:
            with progress(f"seed {one}" if seeds > 1 else "simulating") as report:
                share = partial(_share, report, one - seed, seeds)
                hurry = max(1.0, times)
                found.append(simulation.simulate(shape, one, days, rate, hurry, progress=share, links=link_faults))
        except HoldfastError as error:
            again = f"--nodes {nodes} --spares {spares} --gpus {gpus} --days {days:g} --rates {rates} --times {times:g}"
            again += f" --step-seconds {step_seconds:g} --start-seconds {start_seconds:g}"
            again += f" --restore-seconds {restore_seconds:g} --checkpoint-seconds {checkpoint_seconds:g}"
            again += " --shrink" if shrink else ""
            again += f" --link-faults {link_faults:g}" if link_faults else ""
            raise HoldfastError(f"{error}; to see it again: holdfast simulate {again} --seed {one}") from None
    baselines = simulation.baselines(shape, seed, days, rate) if compare else {}
    if as_json:
        output.print_json({"runs": [dataclasses.asdict(one) for one in found], "baselines": baselines})
    elif seeds == 1:
        output.out().print(_report(found[0], baselines))
    else:
        output.out().print(_summary(found))
    return 0


def _share(report: Progress, whole: int, of: int, share: float) -> None:
    report(int(1000 * (whole + share)), 1000 * of)


def _report(one: "SimulationOutcome", baselines: dict[str, float]) -> RenderableType:
    from holdfast.controller.simulation.run import spread

    figures = output.table("", ">MEDIAN", ">P90", ">P99", ">MOST")
    for name, values in (("fault to incident", one.detected), ("fault to training", one.recovered)):
        figures.add_row(name, *(output.seconds(value) for value in spread(values).values()))
    lost = ", ".join(f"{name} {output.seconds(value)}" for name, value in one.lost.items() if value >= 0.5)
    did = ", ".join(f"{number} {action}" for action, number in sorted(one.actions.items()))
    lines: list[RenderableType] = [
        f"[bold]goodput {output.percent(one.goodput)}[/] of {one.simulated / 86_400:.1f} days, job {one.state}; "
        f"by formula {output.percent(one.expected)}",
        f"lost: {lost or 'nothing'}",
        f"{one.faults} faults that stop training, {one.stops} stops, {one.crashes} crashes of the controller",
        f"{one.incidents} incidents: {did or 'none'}; {one.evictions} nodes evicted, {one.wrong_evictions} wrongly; "
        f"{sum(one.pauses.values())} pauses, {one.wrong_ends} wrongly ended",
        figures,
        *(f"the same faults {name}: goodput {output.percent(value)}" for name, value in baselines.items()),
        f"{one.events:,} events in {one.cpu:.1f} s of CPU time",
    ]
    return Group(*lines)


def _summary(runs: Sequence["SimulationOutcome"]) -> str:
    worst = min(runs, key=lambda one: one.goodput)
    wrong = sum(one.wrong_evictions for one in runs)
    pauses = sum(sum(one.pauses.values()) for one in runs)
    return (
        f"{len(runs)} runs, every invariant held: {sum(one.stops for one in runs)} stops of training, "
        f"{sum(one.crashes for one in runs)} crashes of the controller, {sum(one.evictions for one in runs)} nodes "
        f"evicted, {wrong} wrongly; {pauses} pauses, {sum(one.wrong_ends for one in runs)} wrongly ended; "
        f"worst goodput {output.percent(worst.goodput)} (seed {worst.seed}); "
        f"{sum(one.cpu for one in runs):.0f} s of CPU time"
    )
