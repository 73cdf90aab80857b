"""The embedded trainer's settings, checked before a job of it is started: workers would refuse them seconds later."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch takes time to import
    from holdfast.trainer.settings.config import Config

MODULES = ("holdfast.trainer", "holdfast.trainer.__main__")


def check(args: Sequence[str], world: int, here: bool) -> None:
    """Raise UsageError for settings that the trainer refuses on so many workers. `here`: workers run on this host.

    What needs more than the settings is left to the workers: help, a model to import, and a file that only they have.
    """
    config = _config(args, here)
    if config is not None:
        from holdfast.trainer.run.preflight import check_job, check_module

        check_job(config, world, here)
        if here:
            check_module(config, world)


def partial_backward(args: Sequence[str]) -> int:
    """Shares of the layers that replicas go back through; 1: all of them through everything. 0 if it is not known here:
    the settings are in a file that only the workers have."""
    config = _config(args, here=False)
    return 0 if config is None else config.parallel.partial_backward


def declared(args: Sequence[str], world: int, here: bool) -> dict[str, Any]:
    """Of settings that are known here and were checked: the parallel sizes, without dp, which follows the workers, and
    the bytes of a step on so many, for the order of the job's nodes. Empty where pipeline ranks differ in tp."""
    config = _config(args, here)
    if config is None:
        return {}
    from holdfast.trainer.settings.layout import plan, vocab_of
    from holdfast.trainer.settings.planned import step_bytes

    vocab = vocab_of(config.data.tokenizer)
    layout = plan(config, world, vocab)
    if layout.stage_tp:
        return {}
    return {"parallel": {"pp": layout.pp, "tp": layout.tp}, "step_bytes": step_bytes(config, layout, vocab)}


def _config(args: Sequence[str], here: bool) -> "Config | None":
    """The settings; None for what needs more than them."""
    if {"-h", "--help"}.intersection(args):
        return None
    # Here: other commands, and other jobs, do without.
    from holdfast.trainer.__main__ import build_parser, parse_all

    options = build_parser().parse_args(args)
    if options.import_hf is not None or not (here or options.config is None or Path(options.config).is_file()):
        return None
    config, instead = parse_all(args)
    return config if instead is None else None
