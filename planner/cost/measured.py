"""What `holdfast profile` measured: seconds of layers and of collectives, as a file. Pure: text in and out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.gpus import find
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.layers import Parts, Precision
from holdfast.planner.cost.layout import Layout

VERSION = 1
_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}


class ProfileError(UsageError):
    """A profile that cannot be read, or is of something else; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Seconds of one part of a model on one rank that computes alone."""

    forward: float
    backward: float
    again: float = 0.0
    """Of what `selective` computes again."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a collective as alpha + beta x bytes."""

    alpha: float
    beta: float

    def seconds(self, num_bytes: float) -> float:
        return self.alpha + self.beta * num_bytes


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (bytes, seconds) with the least squares of relative errors; neither part is negative."""
    if not points or any(size <= 0 or seconds <= 0 for size, seconds in points):
        raise ProfileError("a link needs one measured (bytes, seconds) or more, each above 0")
    # Weights 1/t: a large message must not drown the latency of a small one.
    s00 = sum(1 / t**2 for _, t in points)
    s01 = sum(s / t**2 for s, t in points)
    s11 = sum(s * s / t**2 for s, t in points)
    b0, b1 = sum(1 / t for _, t in points), sum(s / t for s, t in points)
    determinant = s00 * s11 - s01**2
    if determinant > 1e-9 * s00 * s11:
        alpha = (b0 * s11 - b1 * s01) / determinant
        beta = (b1 * s00 - b0 * s01) / determinant
        if alpha >= 0 and beta >= 0:
            return Line(alpha, beta)
        if beta < 0:
            return Line(b0 / s00, 0.0)
    return Line(0.0, b1 / s11)


@dataclass(frozen=True, slots=True)
class Profile:
    """Of a model at one micro-batch, on one machine."""

    shape: Mapping[str, Any]
    """Of the model: the fields of plan/transformer.py, but for its layers."""
    dtype: str
    micro_batch_size: int
    device: str
    parts: Mapping[str, Mapping[str, PartTimes]]
    """By `key` of tp and sequence: first, layer, last."""
    optimizer_s: float = 0.0
    """Seconds of the update of one parameter."""
    links: Mapping[str, Mapping[int, Line]] = field(default_factory=dict)
    """By collective and ranks of the group; with as many groups at once as the machine has ranks for."""
    ranks: int = 0
    """That sent at the same time while links were measured."""
    cores: int = 0
    """Of the machine, for ranks on CPUs; 0 for GPUs."""

    def check(self, model: Transformer, precision: Precision, cluster: Cluster) -> None:
        """ProfileError for another model than the one that was measured, another precision or device."""
        for name, value in asdict(model).items():
            if name != "layers" and name in self.shape and self.shape[name] != value:
                raise ProfileError(f"the profile is of a model with {name} {self.shape[name]}, this one has {value}")
        if _BYTES.get(self.dtype) != precision.weight:
            raise ProfileError(f"the profile is of {self.dtype}, and weights have {precision.weight} bytes each")
        if self.device == "cpu" and not cluster.cores:
            raise ProfileError(
                f"the profile is of a CPU, and the cluster has {cluster.gpu.name}: measure on one of them"
            )
        known = find(self.device)
        if known is not None and known.name != cluster.gpu.name:
            raise ProfileError(f"the profile is of {self.device}, and the cluster has {cluster.gpu.name}")

    def applied(self, parts: Parts, layout: Layout) -> Parts:
        """The parts with measured times. ProfileError for a tp, sequence or micro-batch that was not measured."""
        name = key(layout.tp, layout.sequence)
        if layout.tp == 1 and name not in self.parts:
            name = key(1, not layout.sequence)  # one rank has the whole sequence either way
        if layout.micro_batch_size != self.micro_batch_size:
            raise ProfileError(
                f"the profile is of micro_batch_size {self.micro_batch_size}, the layout has "
                f"{layout.micro_batch_size}: measure it with train.micro_batch_size = {layout.micro_batch_size}"
            )
        if name not in self.parts:
            raise ProfileError(f"the profile has no {name}: it has {', '.join(self.parts)}; measure it with --tps")
        times = self.parts[name]
        found = {}
        for part in ("first", "layer", "last"):
            one = times[part]
            found[part] = replace(getattr(parts, part), t_f=one.forward, t_b=one.backward, t_again=one.again)
        return Parts(**found)

    def seconds(self, op: Collective, size: int, num_bytes: float, world: int = 0) -> float | None:
        """Of a collective over `size` ranks of this machine; None if nothing like it was measured.

        `world`: ranks of the job. On shared cores a collective is computation: fewer ranks than were measured get more
        of the cores. 0: as many.
        """
        lines = self.links.get(op.value, {})
        if not lines:
            return None
        found = lines[min(lines, key=lambda n: (abs(math.log(n / size)), n))].seconds(num_bytes)
        if world and self.cores and self.ranks:
            found *= max(1.0, world / self.cores) / max(1.0, self.ranks / self.cores)
        return found


def key(tp: int, sequence: bool) -> str:
    """By which times of parts are kept."""
    return f"tp={tp}" + (" sequence" if sequence else "")


def write(profile: Profile) -> str:
    """As a file has it."""
    return json.dumps({"version": VERSION, **asdict(profile)}, indent=2) + "\n"


def read(text: str, name: str = "profile") -> Profile:
    """The inverse. ProfileError names what is wrong."""
    try:
        found = json.loads(text)
        if found.pop("version") != VERSION:
            raise ProfileError(f"{name} is of another version: measure again with holdfast profile")
        parts = {k: {p: PartTimes(**t) for p, t in each.items()} for k, each in found.pop("parts").items()}
        links = {op: {int(n): Line(**line) for n, line in each.items()} for op, each in found.pop("links").items()}
        profile = Profile(**found, parts=parts, links=links)
        numbers = [t for each in parts.values() for one in each.values() for t in asdict(one).values()]
        numbers += [v for each in links.values() for line in each.values() for v in asdict(line).values()]
        numbers += [profile.optimizer_s, profile.ranks, profile.cores, profile.micro_batch_size]
        if any(n < 1 for each in links.values() for n in each):
            raise ValueError("links are by 1 rank or more")
        if not isinstance(profile.shape, dict) or not all(isinstance(v, str) for v in (profile.dtype, profile.device)):
            raise ValueError("shape is a table, dtype and device are names")
        lacking = [k for k, each in parts.items() if set(each) != {"first", "layer", "last"}]
        if lacking or not parts or not all(isinstance(v, int | float) and 0 <= v < 1e9 for v in numbers):
            raise ValueError("times are numbers of 0 or more, of first, layer and last")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{name} is no file of holdfast profile: {error}") from None
    return profile
