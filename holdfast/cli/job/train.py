"""`holdfast train`: the embedded trainer, under `holdfast run`, under torchrun, or alone."""

import typer

from holdfast.cli.common.extras import needs


def train(context: typer.Context) -> int:
    """Run the embedded trainer; all options go to it (`holdfast train --help` shows them)."""
    with needs("trainer"):
        from holdfast.trainer.__main__ import main
    return main(context.args) or 0
