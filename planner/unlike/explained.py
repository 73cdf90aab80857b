"""A layout over unlike NICs in words: where its ranks go, what crosses, why stages have their layers. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.unlike.blocks import Block, blocks, types_by_stage
from holdfast.planner.unlike.crossing import Crossing, crossing
from holdfast.planner.unlike.transports import transports


@dataclass(frozen=True, slots=True)
class Unlike:
    """Of one layout."""

    layout: Layout
    blocks: tuple[Block, ...]
    crossing: Crossing
    seconds: dict[str, float]
    """By type of NIC, what one more layer adds to a step of its stages."""
    nets: dict[str, dict[str, int]]
    """By axis, how many groups (of pp: links) go by which of NCCL's networks."""

    def lines(self) -> list[str]:
        """For a terminal."""
        found = ["ranks by type of NIC: " + ", ".join(one.text for one in self.blocks)]
        tcp, links = self.nets["pp"].get("Socket", 0), sum(self.nets["pp"].values())
        tied = f", {self.crossing.tied / 1e6:,.4g} MB of it sums of the tied table" if self.crossing.tied else ""
        found.append(
            f"no group of dp or tp spans types of NIC; {tcp:,} of {links:,} links between stages do, by TCP: "
            f"{self.crossing.total / 1e6:,.4g} MB a step{tied}"
        )
        each = ", ".join(f"{1e3 * seconds:.4g} ms on {nic}" for nic, seconds in self.seconds.items())
        found.append(f"layers of stages {list(self.layout.stage_layers)}: a layer adds {each} to a step")
        return found

    def document(self) -> dict[str, Any]:
        return {
            "blocks": [asdict(one) for one in self.blocks],
            "boundaries": self.crossing.boundaries,
            "crossing_bytes": {"pipeline": self.crossing.pipeline, "tied": self.crossing.tied},
            "layer_s": self.seconds,
            "networks": self.nets,
        }


def explained(costs: CostModel, model: Transformer, layout: Layout) -> Unlike:
    """ValueError for a layout with a group that spans types."""
    cluster = costs.cluster
    types = types_by_stage(cluster, layout.pp, layout.dp, layout.tp)
    seconds = {nic: costs.layer_seconds(model, layout, types.index(nic))[0] for nic in dict.fromkeys(types)}
    counts = {axis: Counter[str]() for axis in ("tp", "dp", "pp")}
    for group in transports(cluster, layout):
        counts[group.axis][group.transport.net] += 1
    return Unlike(
        layout,
        blocks(cluster, layout.world),
        crossing(model, layout, cluster, costs.precision),
        seconds,
        {axis: dict(own) for axis, own in counts.items()},
    )
