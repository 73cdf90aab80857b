"""What a host of `chaos.py` cannot have by itself: GPUs, and a clock of its own. As seen by its agent only.

Python imports this file by itself when its folder lies on PYTHONPATH; nothing in the product knows of it. The folder
that CHAOS_HOST names says how things are: `gpus.json`, a list of attributes of boards, and `clock`, seconds that this
host's clock is ahead.
"""

import os
import sys

if "CHAOS_HOST" in os.environ and sys.orig_argv[1:4] == ["-m", "holdfast", "agent"]:
    import importlib.util
    import json
    import time
    from pathlib import Path

    import pynvml

    from holdfast.agent.collectors import gpu

    _host = Path(os.environ["CHAOS_HOST"])
    _spec = importlib.util.spec_from_file_location(
        "fake_nvml", Path(__file__).parents[2] / "tests" / "agent" / "fake_nvml.py"
    )
    _fake = importlib.util.module_from_spec(_spec)
    sys.modules["fake_nvml"] = _fake
    _spec.loader.exec_module(_fake)

    class _Nvml(_fake.FakeNvml):
        """Boards that are as the file says whenever a query comes."""

        def __init__(self, boards):
            super().__init__(boards)
            self.read_at = 0

        def _on(self, board, name, answer):
            path = _host / "gpus.json"
            try:
                at = path.stat().st_mtime_ns
            except OSError:
                at = 0
            if at != self.read_at:
                self.read_at = at
                for one, said in zip(self.boards, json.loads(path.read_text()) if at else [{}, {}], strict=True):
                    for key, value in vars(_fake.Board(one.uuid, links=one.links)).items():
                        setattr(one, key, said.get(key, value))
            return super()._on(board, name, answer)

        def nvmlDeviceGetPciInfo(self, h):
            info = pynvml.nvmlPciInfo_t()
            info.busId = f"00000000:{0x9B + self.boards.index(h):02X}:00.0".encode()
            return info

    _boards = [_fake.Board(f"GPU-{_host.name}-{index}", links=4) for index in range(2)]
    gpu.load_nvml = lambda: (_Nvml(_boards), "")

    _time_ns, _asked = time.time_ns, [0.0, 0]

    def _ahead():
        now = time.monotonic()
        if now - _asked[0] > 0.5:
            try:
                _asked[:] = now, int(1e9 * float((_host / "clock").read_text()))
            except (OSError, ValueError):
                _asked[:] = now, 0
        return _asked[1]

    time.time_ns = lambda: _time_ns() + _ahead()
    time.time = lambda: time.time_ns() / 1e9
