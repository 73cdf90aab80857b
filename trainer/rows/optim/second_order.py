"""DP-KFAC against its formulas written down a second time, in float64; and its work in a pipeline's bubbles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from torch import Tensor

P = 4
STEPS = 4
LR = 0.05
SHAPES = ((3, 4), (5, 3), (2, 5), (4, 4), (6, 2), (3, 3))
"""(out, in) of some matrices."""
MATRICES = 12 * 64**2 + 256 * 64
"""Elements of a layer's matrices of width 64, packed, and of the head: 3 + 1 of attention and 4 + 4 of the rest."""
SEEDS = 5
INVERSIONS = 4
"""Of a stage, one by one."""
MAKESPANS = {"1f1b": 33.0, "gpipe": 33.0, "interleaved": 28.5, "zbv": 25.5, "chimera": 30.0}
"""Of D 4 ranks with N 8 micro-batches without other work, in forwards of a rank's layers (f); a backward (b) takes two.
(N+D-1)(f+b) of PipeDream-Flush and GPipe, (N+(D-1)/V)(f+b) interleaved, N(f+b) + (D-1)f/V of ZBV; in Chimera, where N
is two units of D micro-batches, N(f+b) + (D-2)(b-f) + (D-2)b."""


def dp_kfac() -> Iterator[Row]:
    """Arrays of P ranks are taken from each matrix's owner; the fake network brings nothing from others."""
    for form in ("inverse", "eigen"):
        apart, held = _apart(form)
        yield Row(f"largest difference of P {P} ranks that see the same from the formulas, {form}", 0.0, apart, 1e-10)
        yield Row(f"elements of factors on all P {P} ranks, {form}", sum(o**2 + i**2 for o, i in SHAPES), held)
    for p in (2, P):
        sent, factors = _sent(p)
        yield Row(f"bytes of preconditioned gradients in a step, P {p}", 4 * (p - 1) * MATRICES, sent)
        yield Row(f"bytes of factors in a step, P {p}", 0, factors)
    for p in (P, 8):
        yield Row(f"work of a rank beyond total/P and one matrix, P {p}", 0, _beyond(p))
    for schedule, makespan in MAKESPANS.items():
        yield Row(f"makespan with work of 0.6 bubbles in them, {schedule}, D 4, N 8", makespan, _filled(schedule))
    yield Row(f"of {SEEDS} seeds, those in which SGD at its best rate takes more steps to a loss", SEEDS, _sooner())


def _seen(step: int, number: int) -> tuple[Tensor, Tensor]:
    """What goes through a matrix in a step, (rows, in), and the gradients of what comes of it, (rows, out)."""
    import torch

    out, into = SHAPES[number]
    drawn = torch.Generator().manual_seed(100 * step + number)
    rows = torch.randn(8, into + out, generator=drawn, dtype=torch.float64)
    return rows[:, :into], rows[:, into:] / 8


def _apart(form: Any) -> tuple[float, int]:
    """The largest difference, and how many elements of factors there are on all ranks."""
    import torch

    from holdfast.trainer.mesh.mesh import everyone
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.optim.update_rules import Peers, Target, rule
    from holdfast.trainer.settings.config import OptimConfig
    from holdfast.trainer.settings.layout import TrainerLayout

    # Without the clip no matrix's change depends on another one's.
    config = OptimConfig(name="dp-kfac", kfac_form=form, kl_clip=0.0, invert_every=2, damping=0.1)
    expected, worst, held = _plain(config), 0.0, 0
    for rank in range(P):
        with rank_of(TrainerLayout(1, P, 1, 1, 1), rank):
            shards = [torch.nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in SHAPES]
            targets = [Target(shard, True, P, name=f"layers.{n}.weight") for n, shard in enumerate(shards)]
            update = rule(config, targets, Peers(everyone()))
            for step in range(STEPS):
                watchers = update.watchers(step)
                for number, shard in enumerate(shards):
                    x, g = _seen(step, number)
                    shard.grad = g.t() @ x
                    if id(shard) in watchers:
                        watchers[id(shard)](x, g)
                update.update(LR, step)
            factors = {name: tensor for name, tensor in update.owned().items() if "@factor" in name}
            held += sum(tensor.numel() for tensor in factors.values())
            for number in {int(name.split(".")[1]) for name in factors}:
                worst = max(worst, float((shards[number].detach() - expected[number]).abs().max()))
    return worst, held


def _plain(config: Any) -> list[Tensor]:
    """Each matrix after all steps, by the formulas: one process that sees the same."""
    import torch

    found = []
    for number, (out, into) in enumerate(SHAPES):
        a, g = torch.eye(into, dtype=torch.float64), torch.eye(out, dtype=torch.float64)
        weight = torch.ones(out, into, dtype=torch.float64)
        momentum, ready = torch.zeros_like(weight), (a, g)
        for step in range(STEPS):
            x, y = _seen(step, number)
            rho, count = config.factor_decay, len(x)
            a = rho * a + (1 - rho) * sum(torch.outer(row, row) for row in x) / count
            g = rho * g + (1 - rho) * sum(torch.outer(row, row) for row in y) * count
            ready = ready if step % config.invert_every else (a, g)
            d = y.t() @ x
            if config.kfac_form == "inverse":
                one, other = (m + config.damping * torch.eye(len(m), dtype=torch.float64) for m in ready)
                v = torch.linalg.solve(other, torch.linalg.solve(one, d.t()).t())
            else:  # (G x A + l I) v = d as one system of equations
                whole = torch.kron(ready[1], ready[0]) + config.damping * torch.eye(d.numel(), dtype=torch.float64)
                v = torch.linalg.solve(whole, d.flatten()).view_as(d)
            momentum = config.momentum * momentum + v + config.weight_decay * weight
            weight = weight - LR * momentum
        found.append(weight)
    return found


def _sent(p: int) -> tuple[int, int]:
    """Bytes of a step over all ranks: of preconditioned gradients, and what is sent besides and SGD does not send."""
    import torch

    from holdfast.trainer.optim.traffic import traffic
    from holdfast.trainer.pipeline.pipeline import build_plan
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.settings.load import load

    model = {"model.layers": 1, "model.d_model": 64, "model.heads": 4, "parallel.dp": p, "parallel.zero": 0}
    sent = []
    for name in ("dp-kfac", "sgd"):
        config = load(None, [*model.items(), ("optim.name", name)])
        layout = plan(config, p, 256)
        sent.append(traffic(config, layout, build_plan(config, layout, torch.device("cpu")), 256))
    return sent[0].optimizer, sent[0].total - sent[1].total - sent[0].optimizer


def _beyond(p: int) -> float:
    from holdfast.trainer.optim.matrices import cost, owners

    costs = [cost(shape, 64) for shape in ((96, 32), (32, 32), (128, 32), (32, 128)) for _ in range(6)]
    loads = [0.0] * p
    for one, owner in zip(costs, owners(costs, p, "cost"), strict=True):
        loads[owner] += one
    return max(0.0, max(loads) - sum(costs) / p - max(costs))


def _filled(schedule: str) -> float:
    from holdfast.plan.fill import fill, second_order
    from holdfast.plan.plan import Action, Op
    from holdfast.plan.schedules.table import SCHEDULES
    from holdfast.plan.simulate import durations, simulate

    chosen, ranks, count = SCHEDULES[schedule], 4, 8
    plan = chosen.plan(ranks, chosen.chunks, count)
    share = len(plan.stages) // ranks  # stages that have a rank's layers
    base, work = durations(1, 2, share), 0.6 * (MAKESPANS[schedule] - count * (1 + 2))

    def duration(action: Action) -> float:
        table = {Op.FACTOR: work / 2 / (2 * count * share), Op.INVERT: work / 2 / (share * plan.pipes * INVERSIONS)}
        return table.get(action.op) or base(action)

    return simulate(
        fill(plan, second_order(plan, dict.fromkeys(range(len(plan.stages)), INVERSIONS)), duration).plan, duration
    ).makespan


def _sooner() -> int:
    """Seeds in which DP-KFAC takes fewer steps than SGD at the best of some rates, to a hundredth of the loss."""
    count = 0
    for seed in range(SEEDS):
        baseline = min(_steps("sgd", lr, seed) for lr in (0.03, 0.1, 0.2))
        count += _steps("dp-kfac", 0.3, seed) < baseline
    return count


def _steps(name: str, lr: float, seed: int, most: int = 200) -> int:
    """Steps of an optimizer until two layers have learned what two others do, of inputs of sizes from 1 to 1/16."""
    import torch

    from holdfast.trainer.mesh.mesh import everyone
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.model import accumulate
    from holdfast.trainer.optim.update_rules import Peers, Target, rule
    from holdfast.trainer.settings.config import OptimConfig
    from holdfast.trainer.settings.layout import TrainerLayout

    torch.manual_seed(seed)
    x = torch.randn(128, 8) * 2.0 ** -torch.linspace(0, 4, 8)
    weights = [torch.nn.Parameter(torch.randn(16, 8) / 8**0.5), torch.nn.Parameter(torch.randn(4, 16) / 4)]
    y = torch.tanh(x @ (3 * torch.randn(16, 8)).t()) @ torch.randn(4, 16).t()
    first = 0.0
    with rank_of(TrainerLayout(1, 1, 1, 1, 1)):
        config = OptimConfig(name=name, weight_decay=0.0, damping=0.01, kl_clip=0.1, invert_every=1)
        targets = [Target(weight, True, 1, name=f"layers.{n}.weight") for n, weight in enumerate(weights)]
        update = rule(config, targets, Peers(everyone()))
        for step in range(most):
            with accumulate.watching(update.watchers(step)):
                hidden = torch.tanh(accumulate.multiply(x, weights[0]))
                loss = (accumulate.multiply(hidden, weights[1]) - y).square().sum(-1).mean()
                torch.autograd.backward(loss)
            first = first or float(loss.detach())
            if float(loss.detach()) < first / 100:
                return step
            update.update(lr, step)
            for weight in weights:
                weight.grad = None
    return most
