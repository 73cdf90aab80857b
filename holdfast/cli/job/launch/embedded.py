"""The embedded trainer's settings, checked before a job of it is started: workers would refuse them seconds later."""

from collections.abc import Sequence
from pathlib import Path

MODULES = ("holdfast.trainer", "holdfast.trainer.__main__")


def check(args: Sequence[str], world: int, here: bool) -> None:
    """Raise UsageError for settings that the trainer refuses on so many workers. `here`: workers run on this host.

    What needs more than the settings is left to the workers: help, a model to import, and a file that only they have.
    """
    if {"-h", "--help"}.intersection(args):
        return
    # Here: other commands, and other jobs, do without.
    from holdfast.trainer.__main__ import build_parser, parse_all
    from holdfast.trainer.run.preflight import check_job, check_module

    options = build_parser().parse_args(args)
    if options.import_hf is not None or not (here or options.config is None or Path(options.config).is_file()):
        return
    config, instead = parse_all(args)
    if instead is None:
        check_job(config, world, here)
        if here:
            check_module(config, world)
