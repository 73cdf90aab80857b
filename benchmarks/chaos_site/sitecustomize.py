"""What a host of `chaos.py` cannot have by itself: a clock of its own, and GPUs, as its agent sees them.

Python imports this file by itself when its folder lies on PYTHONPATH; nothing in the product knows of it. The folder
that CHAOS_HOST names says how things are: `clock`, seconds that this host's clock is ahead, and `gpus.json`, a list of
attributes of boards.
"""

import os
import sys
import time
from pathlib import Path

_HOST = Path(os.environ.get("CHAOS_HOST", ""))


def _set_clock():
    time_ns, known = time.time_ns, [0.0, 0]

    def ahead():
        now = time.monotonic()
        if now - known[0] > 0.5:
            try:
                known[:] = now, int(1e9 * float((_HOST / "clock").read_text()))
            except (OSError, ValueError):
                known[:] = now, 0
        return known[1]

    time.time_ns = lambda: time_ns() + ahead()
    time.time = lambda: time.time_ns() / 1e9


def _install_gpus():
    import importlib.util
    import json

    import pynvml

    from holdfast.agent.collectors import gpu

    path = Path(__file__).parents[2] / "tests" / "agent" / "support" / "fake_nvml.py"
    spec = importlib.util.spec_from_file_location("fake_nvml", path)
    fake = importlib.util.module_from_spec(spec)
    sys.modules["fake_nvml"] = fake  # its dataclasses look for their module
    spec.loader.exec_module(fake)

    class Nvml(fake.FakeNvml):
        """Boards that are as the file says whenever a query comes."""

        read_at = 0

        def _on(self, board, name, answer):
            said = _HOST / "gpus.json"
            at = said.stat().st_mtime_ns if said.exists() else 0
            if at != self.read_at:
                self.read_at = at
                for one, values in zip(self.boards, json.loads(said.read_text()) if at else [{}, {}], strict=True):
                    for key, well in vars(fake.Board(one.uuid, links=one.links)).items():
                        setattr(one, key, values.get(key, well))
            return super()._on(board, name, answer)

        def nvmlDeviceGetPciInfo(self, h):
            info = pynvml.nvmlPciInfo_t()
            info.busId = f"00000000:{0x9B + self.boards.index(h):02X}:00.0".encode()
            return info

    boards = [fake.Board(f"GPU-{_HOST.name}-{index}", links=4) for index in range(2)]
    gpu.load_nvml = lambda: (Nvml(boards), "")


if "CHAOS_HOST" in os.environ:
    _set_clock()
    if sys.orig_argv[1:4] == ["-m", "holdfast", "agent"]:
        _install_gpus()
