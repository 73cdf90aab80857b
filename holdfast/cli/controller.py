"""`holdfast controller`: the brain, as a daemon."""

from holdfast.cli.extras import needs
from holdfast.cli.options import configured
from holdfast.config import ControllerConfig


@configured(ControllerConfig)
def controller(config: ControllerConfig) -> int:
    """Run the controller. Prints one JSON line with its addresses when it is ready."""
    config.check()
    with needs("controller"):
        from holdfast.controller.app import run
    return run(config)
