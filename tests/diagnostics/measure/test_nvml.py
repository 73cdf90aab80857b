"""GPU health by the driver, against a fake NVML."""

import pynvml
import pytest

from holdfast.diagnostics.checks.nvml import inspect
from tests.agent.support.fake_nvml import Board, FakeNvml

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


class WithoutErrors(FakeNvml):
    """The fake's ECC counter is never 0; ours asks for uncorrected ones since the driver was loaded."""

    def nvmlDeviceGetTotalEccErrors(self, h: Board, kind: int, counter: int) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return h.ecc


@pytest.mark.parametrize(
    ("board", "text", "action", "fatal"),
    [
        (Board("a", rows=(0, 0, 0, 1)), "could not be remapped", "replace the GPU", True),
        (Board("a", rows=(0, 0, 1, 0)), "is pending", "reset the GPU", True),
        (Board("a", ecc=3), "3 uncorrected memory errors", "reset the GPU; replace", True),
        (Board("a", reasons=0x40), "hardware thermal", "cooling", False),
        (Board("a", recovery=2), "requests a recovery: reboot the node", "reboot the node", True),
        (Board("a", links=18, links_off=2), "NVLinks [0, 1] are off, 16 are up", "reset the GPU", True),
        (Board("a", fail={"nvmlDeviceGetHandleByIndex": LOST}), "cannot open it", "reboot", True),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_what_to_do(board: Board, text: str, action: str, fatal: bool) -> None:
    (fault,) = inspect(WithoutErrors([board]), 0)
    assert text in fault.text
    assert action in fault.action
    assert fault.fatal == fatal
    assert fault.component == "gpu0"


@pytest.mark.parametrize(
    "board",
    [
        Board("sound", links=18),
        Board("without NVLink"),
        Board("no bridge plugged in", links=4, links_off=4),
        Board("remapped long ago", rows=(3, 1, 0, 0)),
        Board("idle clocks", reasons=0x1),
        Board("old driver", fields_off=frozenset({230}), recovery=7),
        Board("no ECC", fail={"nvmlDeviceGetTotalEccErrors": pynvml.NVML_ERROR_NOT_SUPPORTED}),
    ],
    ids=lambda board: str(board.uuid),
)
def test_a_sound_one_has_nothing(board: Board) -> None:
    assert inspect(WithoutErrors([board]), 0) == []
