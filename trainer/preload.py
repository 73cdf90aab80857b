"""Everything that a rank imports and warms up, done once in a process that ranks are then forked from.

No thread, process group, store or device context may exist afterwards: a fork would copy it half alive.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import os

from holdfast.trainer.determinism import fix_products

# Read once, when numpy and torch are loaded: a pool of compute threads would not survive the fork, and
# ranks on one host have a core or less each.
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# What training touches at import time, including what torch imports only on first use.
_MODULES = (
    "argparse",
    "numpy",
    "numpy.ctypeslib",
    "safetensors.torch",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.optim",
    # Not __main__: runpy, which executes it in the rank, warns of modules that are imported already.
    "holdfast.trainer.settings.load",
    "holdfast.trainer.run.loop",
)
# What only some jobs need, and some machines lack. A library costs each of many ranks that import it at once dearly.
_OPTIONAL = ("redis",)


def preload() -> None:
    """Import and warm up all that a rank needs to reach its first step. Idempotent.

    Call it before anything else imports numpy or torch, or those may have started threads already.
    """
    for variable in _ONE_THREAD:
        os.environ.setdefault(variable, "1")
    fix_products()
    for name in _MODULES:
        importlib.import_module(name)
    for name in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            importlib.metadata.version(name)  # a Redis client looks its own up, and the search is remembered
    importlib.import_module("holdfast.trainer.settings.load").read_types()
    _warm_up()
    gc.collect()
    # Forked ranks then do not touch, and so do not copy, the pages of everything loaded so far.
    gc.freeze()


def _warm_up() -> None:
    """One tiny step, so that lazy initialisation inside torch happens here and not in every rank.

    Not with a torch that can use GPUs: autograd, optimizers and fake tensors all ask the driver how many there are, and
    a process forked from one that has asked can use none ("Cannot re-initialize CUDA in forked subprocess").
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional

    torch.set_num_threads(1)
    if torch.version.cuda or torch.version.hip:
        return
    x = torch.zeros(1, 2, 4, 4, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(4, 4))
    seen = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    logits = functional.linear(functional.rms_norm(seen, (4,)), weight).flatten(0, -2)
    loss = functional.cross_entropy(functional.gelu(logits), torch.zeros(len(logits), dtype=torch.int64))
    torch.autograd.backward(loss)
    torch.optim.AdamW([weight], fused=True).step()
    # DTensor works out shapes on fake tensors; their first use builds tables that cost a rank 0.1 s.
    with FakeTensorMode():
        torch.empty_strided((4, 4), (4, 1)).detach().clone()
