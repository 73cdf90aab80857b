"""`holdfast controller`: the controller's daemon."""

from holdfast.base.config.controller import ControllerConfig
from holdfast.cli.common.options import configured
from holdfast.cli.serve import daemons


@configured(ControllerConfig)
def controller(config: ControllerConfig) -> int:
    """Run the controller. Prints one JSON line with its addresses when it is ready."""
    return daemons.run_controller(config)
