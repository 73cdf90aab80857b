"""`holdfast memory`: what each rank of a job will hold, by kind, before anything runs; and what fits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import UsageError
from holdfast.cli.common import bounds, output
from holdfast.cli.common.extras import needs, require
from holdfast.cli.common.options import Json

if TYPE_CHECKING:  # torch takes seconds to import
    from holdfast.trainer.memory.choices import Choice
    from holdfast.trainer.memory.expected import Expected
    from holdfast.trainer.settings.config import Config

_SHOWN = 10
"""Alternatives in the table, besides the first that fits."""
_MOST_RANKS = 1 << 20
_MOST_ACTIONS = 200_000

_INSTEAD = ("--sample", "--export-hf", "--traffic")


def memory(
    context: typer.Context,
    limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a device, as 80GB; marks the first setting that fits.")
    ] = "",
    reserve: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Part of the limit that tensors do not get: CUDA context, NCCL, fragmentation. "
            "Default: 2GB, with parallel.device = cpu nothing.",
        ),
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="Then run two steps on this machine's CPUs, and print both.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Print the bytes that each rank will hold, by kind, and settings that hold less, the cheapest first.

    Takes the settings of `holdfast train` (--config FILE, --model NAME, --pp, --dp, --tp, --zero, --schedule, --set).
    Starts no process, but with --measure.
    """
    require("trainer", "torch", "numpy")
    room = bounds.size_of("--limit", limit)
    kept_back = bounds.size_of("--reserve", reserve)
    with needs("trainer"):
        from holdfast.trainer.__main__ import parse_all

    if any(word.partition("=")[0] in _INSTEAD for word in context.args):
        raise UsageError("holdfast memory takes settings only: leave out --sample, --export-hf and --traffic")
    config, instead = parse_all(context.args)
    assert instead is None
    if config.module.build:
        raise UsageError("holdfast memory works out what the transformer's layers hold: leave out module.build")
    found = _Found(config, room, kept_back)
    measured = None
    if measure:
        from holdfast.cli.study.memory_measured import check, run

        # The host's memory is the device's here.
        check(found.expected.layout.world, found.expected.needs + max(found.expected.host))
        measured = run(context.args, found.expected.layout.world)
    if as_json:
        output.print_json({**found.document(), "measured": measured})
        return 0
    found.print()
    for line in [] if measured is None else _beside(measured):
        output.say(line)
    return 0


class _Found:
    """What was worked out for the settings, and for others until one fits."""

    def __init__(self, config: Config, limit: int | None, reserve: int | None) -> None:
        with needs("trainer"):
            from holdfast.trainer.memory import choices
            from holdfast.trainer.memory.exhausted import RESERVE
            from holdfast.trainer.memory.expected import expect
            from holdfast.trainer.settings.layout import plan, vocab_of, world_of

        self.config, self.limit = config, limit
        self.device = "cpu" if config.parallel.device == "cpu" else "cuda"
        self.reserve = (RESERVE if self.device == "cuda" else 0) if reserve is None else reserve
        if limit is not None and limit <= self.reserve:
            raise UsageError(
                f"--limit is {output.size(limit)}, of which {output.size(self.reserve)} are kept back: "
                "raise --limit, or lower --reserve"
            )
        world, vocab = world_of(config.parallel), vocab_of(config.data.tokenizer)
        _check_size(world, config)
        layout = plan(config, world, vocab)
        self.expected = expect(config, layout, vocab, self.device)
        self.others: list[tuple[Choice, Expected]] = []
        self.best: Choice | None = None
        """The cheapest that fits."""
        for choice in choices.alternatives(config, world, vocab, device=self.device):
            is_shown = len(self.others) < _SHOWN or choice.is_chosen
            if not is_shown and (limit is None or self.best is not None):
                continue
            expected = choices.expected_of(choice, vocab, self.device)
            if expected is None:
                continue
            is_best = self.best is None and self.fits(expected)
            if is_best:
                self.best = choice
            if is_shown or is_best:
                self.others.append((choice, expected))
        if limit is not None and self.best is None and config.memory.policy == "whole":
            found = choices.in_chunks(config, world, vocab, self.device, limit - self.reserve)
            if found is not None:
                self.best = found[0]
                self.others.append(found)

    def fits(self, expected: Expected) -> bool:
        return self.limit is not None and expected.needs + self.reserve <= self.limit

    def print(self) -> None:
        from holdfast.trainer.memory.expected import KINDS
        from holdfast.trainer.memory.words import groups, ranks_of

        expected, layout = self.expected, self.expected.layout
        table = output.table(">RANKS", *(f">{kind.upper()}" for kind in KINDS), ">TOTAL", "")
        for ranks, kinds in groups(expected):
            cells = [output.size(value) for value in asdict(kinds).values()]
            mark = "most" if expected.most in ranks else ""
            table.add_row(ranks_of(expected, ranks), *cells, output.size(kinds.total), mark)
        console = output.out()
        console.print(table)
        output.say(
            f"pp={layout.pp} dp={layout.dp} tp={layout.tp}, {expected.parameters:,} parameters; "
            f"{output.size(self.paper)} a rank by the ZeRO paper's count of model states"
        )
        if most := max(expected.host):
            what = ["optimizer states"] * (self.config.optim.state == "host")
            what += ["activations"] * (self.config.train.activations == "host")
            what += ["chunks"] * (self.config.memory.policy == "chunks")
            output.say(f"{' and '.join(what)} in host memory: {output.size(most)} on the rank with the most")
        if self.limit is not None:
            verdict = "fits" if self.fits(expected) else "does not fit"
            output.say(
                f"{verdict} in {output.size(self.limit)}: {output.size(expected.needs)} on the fullest rank, "
                f"and {output.size(self.reserve)} that no tensor gets"
            )
        console.print()
        self._print_others()

    @property
    def paper(self) -> float:
        from holdfast.trainer.memory.states import paper_bytes

        layout = self.expected.layout
        return paper_bytes(self.expected.parameters / layout.pp / layout.tp, layout.dp, self.config.parallel.zero)

    def _print_others(self) -> None:
        head = ["RECOMPUTE", ">ZERO", "SCHEDULE", ">MICRO-BATCH", "STATES", ">COST", ">NEEDS"]
        table = output.table(*head, *([] if self.limit is None else ["FITS"]), "")
        base = next((choice.seconds for choice, _ in self.others if choice.is_chosen), None)
        for choice, expected in self.others:
            recompute, zero, schedule, size = choice.name
            cost = "-" if not base else f"{choice.seconds / base:.3f}"
            row = [output.text(recompute), str(zero), schedule, str(size)]
            row += [choice.config.optim.state, cost, output.size(expected.needs)]
            if self.limit is not None:
                fits = "[green]first[/]" if choice is self.best else "yes" if self.fits(expected) else "[red]no[/]"
                row.append(fits)
            table.add_row(*row, "chosen" if choice.is_chosen else "")
        output.out().print(table)
        if self.limit is None:
            return
        if self.best is None:
            output.say("none fits: raise --pp, --tp or --dp, or take a shorter data.seq_len")
        elif settings := self._settings():
            output.say("the first that fits: " + " ".join(f"--set {one}" for one in settings))

    def _settings(self) -> list[str]:
        from holdfast.trainer.memory.choices import settings_of

        return [] if self.best is None else settings_of(self.best, self.config)

    def document(self) -> dict[str, Any]:
        from holdfast.trainer.memory.choices import settings_of
        from holdfast.trainer.memory.words import document

        return {
            **document(self.expected),
            "device": self.device,
            "limit_bytes": self.limit,
            "reserve_bytes": self.reserve,
            "fits": None if self.limit is None else self.fits(self.expected),
            "paper_bytes": self.paper,
            "alternatives": [
                {
                    **dict(zip(("recompute", "zero", "schedule", "micro_batch_size"), choice.name, strict=True)),
                    "settings": settings_of(choice, self.config),
                    "optimizer_states": choice.config.optim.state,
                    "seconds": choice.seconds,
                    "needs_bytes": expected.needs,
                    "kinds": asdict(expected.ranks[expected.most]),
                    "host_bytes": max(expected.host),
                    "fits": None if self.limit is None else self.fits(expected),
                    "is_chosen": choice.is_chosen,
                    "is_first": choice is self.best,
                }
                for choice, expected in self.others
            ],
        }


def _check_size(world: int, config: Config) -> None:
    """UsageError for what would take minutes."""
    if world > _MOST_RANKS:
        raise UsageError(f"pp x dp x tp is {world:,}: {_MOST_RANKS:,} ranks at most")
    count = 3 * config.parallel.pp * max(1, config.parallel.chunks) * config.train.micro_batches
    count //= max(1, config.parallel.dp)
    if count > _MOST_ACTIONS:
        raise UsageError(
            f"{config.parallel.pp:,} pipeline ranks and train.micro_batches = {config.train.micro_batches:,} are "
            f"{count:,} computations in a step, {_MOST_ACTIONS:,} at most are simulated; take fewer (with a "
            "schedule that bounds the micro-batches under way, as 1f1b does, memory is the same)"
        )


def _beside(measured: dict[str, Any]) -> list[str]:
    from holdfast.trainer.memory.words import beside

    return [beside(one["pp"], one["expected"], one["measured"], one["allocated"]) for one in measured["ranks"]]
