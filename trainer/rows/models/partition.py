"""Figures of C9a (Merak): what a cut module computes, against the module itself."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

STAGES = 3


def recomposed() -> Iterator[Row]:
    """Six kinds of modules in three stages: results, gradients and what the messages carry."""
    # Here: rows are listed without torch.
    import copy

    import torch

    from holdfast.trainer.modules.recompose import Recomposed
    from holdfast.trainer.modules.split import partition
    from holdfast.trainer.modules.trace import trace
    from holdfast.trainer.rows.models.kinds import KINDS

    for name, (build, inputs) in KINDS.items():
        torch.manual_seed(0)
        plain, args = build(), inputs()
        module = copy.deepcopy(plain)
        whole = partition(trace(module, args), STAGES, torch.float32)
        stages = Recomposed(whole)
        _, results = stages.forward(*args)
        expected = torch.utils._pytree.tree_leaves(plain(*args))
        grads = [torch.randn_like(result) for result in expected]
        stages.backward(results, grads)
        torch.autograd.backward(expected, grads)
        found = stages.gradients()
        apart = [float((a - b).detach().abs().max()) for a, b in zip(results, expected, strict=True)]
        ways = [_apart(found.get(n), p.grad) for n, p in plain.named_parameters()]
        yield Row(f"{name}: largest difference of a result in {STAGES} stages", 0, max(apart), tolerance=0)
        yield Row(f"{name}: largest difference of a gradient", 0, max(ways), tolerance=0)
        order = {node: place for place, node in enumerate(whole.trace.operations)}
        for boundary, place in enumerate(whole.cuts.places):
            read = [
                node
                for node, at in order.items()
                if at < place
                and (node in whole.trace.results or any(order.get(user, -1) >= place for user in node.users))
            ]
            sent = len(whole.messages[boundary].fields)
            yield Row(f"{name}: values that message {boundary + 1} must carry", len(read), sent, tolerance=0)


def _apart(found: object, expected: object) -> float:
    from torch import Tensor

    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)
    return float((found - expected).detach().abs().max())
