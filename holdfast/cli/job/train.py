"""`holdfast train`: the embedded trainer, under `holdfast run`, under torchrun, or alone."""

import typer

from holdfast.cli.common.extras import needs, require


def train(context: typer.Context) -> int:
    """Run the embedded trainer; all options go to it (`holdfast train --help` shows them)."""
    if not {"-h", "--help"}.intersection(context.args):  # settings are explained without torch
        require("trainer", "torch", "numpy")
    with needs("trainer"):
        from holdfast.trainer.__main__ import main
    return main(context.args) or 0
