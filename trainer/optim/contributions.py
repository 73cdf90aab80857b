"""Replicas that go back through a share of the layers only (SPB: Rana et al., DistributedML 2021).

Of k replicas, the one in role i goes back through the last i/k of the layers. The layers nearest to the output have
gradients of all replicas, those nearest to the input of one. The published rule keeps roles; here they rotate with each
step, so that over k steps every layer sees every replica's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.trainer.mesh.mesh import group_of
from holdfast.trainer.mesh.networks import Networks


@dataclass(frozen=True, slots=True)
class Contributions:
    """Who goes back through what. Pure. Sections are counted from the output side, from 1 to `parts`."""

    parts: int
    """Roles and sections, k of the paper. 1: all replicas go back through everything."""
    replicas: int
    """A multiple of `parts`."""
    layers: int

    def role(self, replica: int, step: int) -> int:
        """The section nearest to the input that this replica goes back through."""
        return (replica + step) % self.parts + 1

    def without_way_back(self, replica: int, step: int) -> int:
        """How many of the first layers have no backward here. With any, embedding and positions have none either."""
        return self._first_of(self.role(replica, step))

    def section_of(self, name: str) -> int:
        """The section of a parameter, by its global name."""
        kind, _, rest = name.partition(".")
        if kind == "layers":
            layer = int(rest.partition(".")[0])
            return next(q for q in range(1, self.parts + 1) if layer >= self._first_of(q))
        return self.parts if kind in ("embed", "positions") else 1

    def contributors(self, section: int, step: int) -> tuple[int, ...]:
        """Replicas that have gradients of a section, at least replicas / parts."""
        return tuple(r for r in range(self.replicas) if self.role(r, step) >= section)

    def receivers(self, section: int, step: int) -> dict[int, int]:
        """Each replica that has none, and the contributor that sends it the mean."""
        having = self.contributors(section, step)
        others = [r for r in range(self.replicas) if r not in having]
        return {replica: having[place % len(having)] for place, replica in enumerate(others)}

    def share(self) -> float:
        """Of the layers, what is gone back through on average over replicas or steps: (k + 1) / 2k of equal ones."""
        layers = sum(self.layers - self._first_of(q) for q in range(1, self.parts + 1))
        return layers / self.parts / self.layers

    def _first_of(self, section: int) -> int:
        return self.layers - self.layers * section // self.parts


class ContributionMeans:
    """The means of gradients over those replicas that have them, sent to the others too. In float32 or finer.

    Of a section of P elements with c contributors among d replicas, 2(c - 1) P elements are sent to add up and
    (d - c) P to the others: of all sections of equal size together half, and three quarters, of what an all-reduce
    sends. Called by all replicas, as `GradientMeans`.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        group: dist.ProcessGroup,
        plan: Contributions,
        step: Callable[[], int],
        timeout: timedelta,
        networks: Networks | None = None,
    ) -> None:
        """`parameters` with their global names. `step` says which one is under way: the roles follow from it."""
        self._group, self._plan, self._step = group, plan, step
        self._ranks = dist.get_process_group_ranks(group)
        self._own = group.rank()
        sections: dict[int, list[nn.Parameter]] = {q: [] for q in range(1, plan.parts + 1)}
        for name, parameter in parameters:
            sections[plan.section_of(name)].append(parameter)
        self._sections = {q: _Section(held) for q, held in sections.items() if held}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {tuple(range(group.size())): group}
        for turn in range(plan.parts):
            for q in self._sections:
                members = plan.contributors(q, turn)
                if self._own in members and len(members) > 1 and members not in self._groups:
                    ranks = [self._ranks[member] for member in members]
                    self._groups[members] = group_of(ranks, timeout, f"contributors {members}", networks)
        self._connect()
        self._is_last = False
        for q, section in self._sections.items():
            for place, parameter in enumerate(section.parameters):
                final = partial(self._final, q, place)
                parameter.register_post_accumulate_grad_hook(final)  # type: ignore[no-untyped-call]  # torch's

    def _connect(self) -> None:
        """Meet the others now, pair by pair and group by group in one order. gloo may connect two ranks when they first
        communicate, which needs the store, and that does one thing at a time; NCCL makes a communicator for each pair
        and blocks for both ends. Ranks that began with different ones would never meet.
        """
        one = torch.zeros(1, device=next(iter(self._sections.values())).parameters[0].device)
        links = {
            (min(pair), max(pair))
            for turn in range(self._plan.parts)
            for q in self._sections
            for pair in self._plan.receivers(q, turn).items()
        }
        for low, high in sorted(links):
            if self._own == low:
                dist.send(one, self._ranks[high], self._group)
            elif self._own == high:
                dist.recv(one, self._ranks[low], self._group)
        for group in self._groups.values():
            dist.all_reduce(one, group=group)

    @property
    def num_bytes(self) -> int:
        """Gradients that this replica adds up with others in the step under way, of those that went out."""
        return sum(s.flat.nbytes for s in self._sections.values() if s.flat is not None and s.work is not None)

    def expect(self) -> None:
        """The backward that follows is the last one of the step: what it leaves on a parameter is final."""
        self._is_last = True

    def begin(self) -> None:
        """Send what no backward has announced."""
        self._is_last = False
        for section in self._sections.values():
            section.missing.clear()
        self._send()

    def finish(self) -> None:
        """Wait: afterwards all replicas have all means. Begins what has not begun."""
        self.begin()
        arriving = {q: self._receive(q, section) for q, section in self._sections.items() if not self._has(q)}
        sent: list[dist.Work] = []
        for q, section in self._sections.items():
            if q in arriving:
                arriving[q].wait()
            elif section.work is not None:
                section.work.wait()
            for replica, source in self._plan.receivers(q, self._step()).items():
                if source == self._own:
                    assert section.flat is not None
                    sent.append(_work(dist.isend(section.flat, self._ranks[replica], self._group, tag=q)))
        for work in sent:
            work.wait()
        for section in self._sections.values():
            section.give()

    def _has(self, q: int) -> bool:
        return self._plan.role(self._own, self._step()) >= q

    def _final(self, q: int, place: int, parameter: nn.Parameter) -> None:
        if self._is_last:
            self._sections[q].missing.discard(place)
            self._send()

    def _send(self) -> None:
        """Sections go out in one order on all replicas, each when its gradients are final."""
        step = self._step()
        for q, section in self._sections.items():
            if section.missing or not self._has(q):
                return
            if section.flat is None:
                members = self._plan.contributors(q, step)
                flat = section.gather(len(members))
                if len(members) > 1:
                    section.work = dist.all_reduce(flat, group=self._groups[members], async_op=True)

    def _receive(self, q: int, section: _Section) -> dist.Work:
        source = self._plan.receivers(q, self._step())[self._own]
        return _work(dist.irecv(section.empty(), self._ranks[source], self._group, tag=q))


class _Section:
    """Parameters whose gradients go together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._wide = torch.promote_types(parameters[0].dtype, torch.float32)
        self.clear()

    def clear(self) -> None:
        self.missing = set(range(len(self.parameters)))
        self.flat: Tensor | None = None
        self.work: dist.Work | None = None

    def gather(self, contributors: int) -> Tensor:
        """Lay this replica's shares of the mean side by side."""
        grads = []
        for parameter in self.parameters:
            assert parameter.grad is not None, "a parameter got no gradient"
            grads.append(parameter.grad.flatten().to(self._wide))
            parameter.grad = None  # the mean takes its place: both at once would be one more of all weights
        with torch.no_grad():
            self.flat = torch.cat(grads).div_(contributors)
        return self.flat

    def empty(self) -> Tensor:
        """For means that come from another replica."""
        self.flat = torch.empty(
            sum(parameter.numel() for parameter in self.parameters),
            dtype=self._wide, device=self.parameters[0].device,
        )  # fmt: skip
        return self.flat

    def give(self) -> None:
        """The means to the parameters."""
        assert self.flat is not None
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, mean in zip(self.parameters, torch.split(self.flat, sizes), strict=True):
            parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        self.clear()


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not of the group"
    return work
