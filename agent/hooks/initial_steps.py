"""Optimizer steps that are none: torch makes a state for an optimizer by a step with a learning rate of 0."""

import sys

_MAKES_STATE = "_init_optim_state"  # torch.distributed.checkpoint.state_dict, for saving and for restoring
_DEPTH = 6
"""Frames from a hook of an optimizer to that function: torch's wrappers of the step, and those of schedulers."""


def is_initial(depth: int = 2) -> bool:
    """Whether the optimizer step that called this hook only makes the optimizer's state. `depth`: frames from here to
    what called the hook."""
    try:
        frame = sys._getframe(depth)
    except ValueError:
        return False
    for _ in range(_DEPTH):
        if frame.f_code.co_name == _MAKES_STATE:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
