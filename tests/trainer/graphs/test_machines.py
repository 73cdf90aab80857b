"""A cluster file as Alpa's planners take it."""

from __future__ import annotations

import pytest

from holdfast.planner.cluster.file import parse
from holdfast.trainer.graphs.machines import machines_of
from holdfast.trainer.settings.errors import ConfigError

TEXT = (
    'gpu = "A100"\nnodes = 8\ngpus_per_node = 4\nnodes_per_switch = 4\n[links.node]\nalpha_us = 3\ngb_per_s = 100\n'
    "[links.switch]\nalpha_us = 8\ngbit_per_s = 400\n[links.pod]\nalpha_us = 4\ngbit_per_s = 100\n"
)


def test_the_slowest_hop_stands_for_all() -> None:
    """8 + 4 us between nodes of two switches; 100 Gbit/s are 12.5 GB/s."""
    found = machines_of(parse(TEXT), 40e9)
    assert (found.nodes, found.per_node, found.memory_bytes) == (8, 4, 40e9)
    assert found.inside_alpha == pytest.approx(3e-6)
    assert found.inside_beta == pytest.approx(1 / 100e9)
    assert found.between_alpha == pytest.approx(12e-6)
    assert found.between_beta == pytest.approx(1 / 12.5e9)
    assert found.flops == pytest.approx(parse(TEXT).gpu.speed)
    assert machines_of(parse(TEXT)).memory_bytes == parse(TEXT).gpu.memory_bytes


def test_one_node_needs_no_link_between() -> None:
    one = machines_of(parse('gpu = "A100"\nnodes = 1\ngpus_per_node = 4\n'))
    assert (one.nodes, one.per_node) == (1, 4)
    link = "[links.node]\nalpha_us = 100\ngb_per_s = 1\n"
    linked = machines_of(parse(f'gpu = "A100"\nnodes = 1\ngpus_per_node = 4\n{link}'))
    assert (linked.between_alpha, linked.between_beta) == (linked.inside_alpha, linked.inside_beta)
    assert linked.between_beta == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            ('nic = "roce"', 'nic = "infiniband"'),
            "NICs of unlike types, infiniband, roce: --stages",
        ),
        (("speed = 2", "speed = 1"), "nodes differ in speed: --stages alpa takes nodes alike"),
    ],
)
def test_nodes_that_are_unlike_are_refused(keys: tuple[str, str], says: str) -> None:
    groups = "".join(f"[[group]]\nnodes = 2\ngpus_per_node = 4\nethernet_gbit_per_s = 10\n{key}\n" for key in keys)
    with pytest.raises(ConfigError, match=says):
        machines_of(parse(TEXT.replace("nodes = 8\ngpus_per_node = 4\nnodes_per_switch = 4\n", "") + groups))
