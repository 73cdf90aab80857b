"""How a rank dies in the step that a test has chosen for it, and in no later one."""

from __future__ import annotations

import os
import time

STRUCK_AT = "STRUCK_AT"
"""In the environment of a rank that will be killed from outside: in which step."""


def die_here(step: int) -> None:
    """To be called at the end of each step: a rank to be killed in it gets no further, however late the kill comes."""
    if os.environ.get(STRUCK_AT) == str(step):
        time.sleep(600)
