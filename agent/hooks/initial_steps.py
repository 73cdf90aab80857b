"""Optimizer steps that are none of their own: torch makes a state for an optimizer by a step with a learning rate of 0,
and a step may call another."""

import sys
from typing import Any

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


def outer(depth: int = 2) -> Any:
    """The optimizer whose step called the step that called this hook; None where none did. `depth` as above.

    Both are of the same optimizer where a class and its base have hooks: torch gives them to every class of which there
    is an instance.
    """
    frame = sys._getframe(depth)
    step = frame.f_code
    for _ in range(_DEPTH):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if frame.f_code is step:
            return frame.f_locals.get("self", frame)
    return None
