"""Threads of Holdfast in a watched process take no part in what the program does with signals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.probe_file.layout import ENV_PATH

WAITS = """
import os, signal
from holdfast.agent import probe
probe.attach()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])
os.kill(os.getpid(), signal.{name})
assert signal.sigwait([signal.{name}]) == signal.{name}
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {{signal.{name}}}
print("waited for")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2", "SIGALRM", "SIGHUP"])
def test_a_signal_that_the_program_blocks_is_left_to_it(tmp_path: Path, name: str) -> None:
    """To a thread that does not block it the kernel would give it, and end the process."""
    env = os.environ | {ENV_PATH: str(tmp_path / "probe")}
    code = [sys.executable, "-c", WAITS.format(name=name)]
    found = subprocess.run(code, env=env, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "waited for\n"), found.stderr
