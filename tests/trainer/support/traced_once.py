"""One trace of a module: the first in a process imports 400 modules, which takes a rank longer than its job."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.trainer.modules.trace import trace

trace(nn.Linear(2, 2), (torch.zeros(1, 2),))
