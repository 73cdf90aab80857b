"""The sampling loops that this machine has."""

import pytest

from holdfast.agent.sampling.sweeps import COMPILED

LOOPS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="set up without a compiler")),
    pytest.param(False, id="python"),
]
