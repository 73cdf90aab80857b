"""What a step of the trainer sends between two clusters, by the counters of the link that joins them.

Four hosts, each a network namespace; two under each switch, as two clusters whose NICs are of unlike types.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Zygote

from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import need
from holdfast.planner.unlike.blocks import by_type
from tests.cables import Cables, missing

WHY = missing()
pytestmark = [pytest.mark.slow, pytest.mark.aside, pytest.mark.skipif(bool(WHY), reason=WHY)]

CLUSTER_OF = {"a0": "infiniband", "b0": "roce", "a1": "infiniband", "b1": "roce"}
"""In the order in which the hosts would be taken by name alone: a cluster's hosts in turn."""
LAYERS, WIDTH, LENGTH, BATCH, COUNT, STEPS = 4, 128, 64, 2, 8, 2
WITHIN = 0.04
BESIDES = 20_000
"""Of gloo's own headers, and of the sums of loss and norm."""
ATTEMPTS = 4
"""On a busy machine TCP sends a packet twice now and then, never one less."""


@pytest.fixture(scope="module")
def cables() -> Iterator[Cables]:
    laid = Cables({name: f"s-{nic[:4]}" for name, nic in CLUSTER_OF.items()}, subnet="10.79.0")
    try:
        laid.lay()
        laid.network("fab0", "10.79.4", {name: f"f-{nic[:4]}" for name, nic in CLUSTER_OF.items()})
        yield laid
    finally:
        laid.close()


def run(
    zygote: Zygote, cables: Cables, text: Path, folder: Path, hosts: list[str], steps: int = STEPS, **more: str
) -> tuple[float, float, list[float]]:
    """Bytes a step between the clusters and, with networks by NIC, within them, and the losses. `hosts`: by rank."""
    folder.mkdir()
    settings = {
        "model.layers": LAYERS, "model.d_model": WIDTH, "model.heads": 4, "data.seq_len": LENGTH,
        "data.cache_dir": folder / "cache", "train.micro_batches": COUNT, "train.micro_batch_size": BATCH,
        "train.log_every": 0, "optim.warmup_steps": 5, "parallel.timeout_s": 200, "parallel.pp": 2, "parallel.dp": 2,
        "parallel.zero": 1, "parallel.stage_layers": "[3, 1]",
    } | {key.replace("__", "."): value for key, value in more.items()}  # fmt: skip
    argv = ["--data", str(text), *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    nics = {cables.space(host): nic for host, nic in CLUSTER_OF.items()}
    args = {"argv": argv, "spaces": [cables.space(host) for host in hosts], "switches": cables.space("sw"),
            "steps": steps, "nics": nics if more else None}  # fmt: skip
    done = zygote.run("apart:crossing", 4, folder, args=args)
    assert done["exits"] == [0] * 4
    first, last = done["results"][0], done["results"][-1]
    return first["crossed"] / steps, first["within"] / steps, last["losses"]


def is_near(counted: float, expected: float) -> bool:
    return abs(counted - expected) <= WITHIN * expected + BESIDES


def test_by_type_of_nic_messages_of_the_pipeline_alone_cross(
    zygote: Zygote, cables: Cables, text: Path, tmp_path: Path
) -> None:
    """2 N b s h x 4 bytes a step. In the order of names replicas are apart, and their sums cross: 2 (d - 1) x 4 bytes
    of each parameter. The losses are the same."""
    nodes = tuple(Node(name, 1, nic=nic, ethernet_beta=1e-9) for name, nic in CLUSTER_OF.items())
    known = by_type(Cluster(need("A100"), nodes, {Level.SWITCH: Hop(1e-5, 1e-9)}))
    messages = 2 * COUNT * BATCH * LENGTH * WIDTH * 4
    parameters = LAYERS * (12 * WIDTH**2 + WIDTH) + 2 * 256 * WIDTH + WIDTH
    sums = 2 * (2 - 1) * 4 * parameters
    found = {}
    for name, hosts, expected in (
        ("by type", [node.name for node in known.nodes], messages),
        ("by name", list(CLUSTER_OF), sums),
    ):
        for attempt in range(ATTEMPTS):
            folder = tmp_path / f"{name.replace(' ', '-')}-{attempt}"
            counted, _, found[name] = run(zygote, cables, text, folder, hosts)
            print(f"{name}: {counted:,.0f} bytes a step between the clusters, {expected:,} by formula")
            if is_near(counted, expected):
                break
        assert is_near(counted, expected)
    assert found["by type"] == found["by name"]
    assert len(found["by type"]) == 1 + STEPS


def test_of_four_stages_the_link_in_the_middle_crosses_and_the_others_keep_their_fabric(
    zygote: Zygote, cables: Cables, text: Path, tmp_path: Path
) -> None:
    """2 N b s h x 4 bytes a step of each boundary: one between the types, by eth0, and one within each, by fab0."""
    by_nic = {"transport__networks": "by-nic", "transport__within": "fab0", "transport__across": "eth0"}
    sizes = {"parallel__pp": "4", "parallel__dp": "1", "parallel__stage_layers": "[]"}
    hosts = sorted(CLUSTER_OF)
    each = 2 * COUNT * BATCH * LENGTH * WIDTH * 4
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"four-{attempt}"
        crossed, within, losses = run(zygote, cables, text, folder, hosts, 1, **sizes, **by_nic)
        print(f"{crossed:,.0f} bytes a step between the clusters, {within:,.0f} within; {each:,} by formula, and twice")
        if is_near(crossed, each) and is_near(within, 2 * each):
            break
    assert is_near(crossed, each)
    assert is_near(within, 2 * each)
    assert len(losses) == 2
