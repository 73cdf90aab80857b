"""In every process on pretended GPUs: what one that computes nothing cannot answer."""

import importlib.abc
import sys
from typing import Any

NEEDED_BY = "holdfast.trainer.run.loop"


def help_out() -> None:
    import torch

    from holdfast.trainer.telemetry import totals

    # cuDNN brings a runtime of its own, which finds no GPU.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Losses and norms are whatever lay in memory.
    finite: Any = property(lambda _: True)
    totals.Totals.is_finite = finite


class Before(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == NEEDED_BY:
            sys.meta_path.remove(self)
            help_out()


sys.meta_path.insert(0, Before())
