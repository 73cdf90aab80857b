"""`holdfast controller`: the brain, as a daemon."""

from holdfast.cli import daemons
from holdfast.cli.options import configured
from holdfast.config import ControllerConfig


@configured(ControllerConfig)
def controller(config: ControllerConfig) -> int:
    """Run the controller. Prints one JSON line with its addresses when it is ready."""
    return daemons.run_controller(config)
