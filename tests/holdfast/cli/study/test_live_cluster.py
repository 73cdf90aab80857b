"""`holdfast plan --cluster live`: the cluster of a controller's agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import UsageError
from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from holdfast.cli.study.live_cluster import read_live
from holdfast.planner.cluster.file import parse

Capture = pytest.CaptureFixture[str]


def node(name: str, switch: str, **other: Any) -> dict[str, Any]:
    gpus = [{"index": i, "uuid": f"u{i}", "model": "NVIDIA A100-SXM4-80GB", "pci": "", "memory_bytes": 0, "values": {}}
            for i in range(2)]  # fmt: skip
    nics = [{"name": "mlx5_0", "kind": "rdma", "speed_bps": 200 * 10**9, "numa_node": 0, "state": "ACTIVE",
             "link_layer": "InfiniBand"}]  # fmt: skip
    known = {"name": name, "hostname": name, "state": "healthy", "connected": True, "switch": switch}
    return known | {"gpus": gpus, "nics": nics} | other


def verdict(node: str, value: float | None, component: str = "", metric: str = "busbw") -> dict[str, Any]:
    return {"node": node, "check": "all-reduce", "metric": metric, "component": component, "value": value}


class Pretended(Client):
    def __init__(self, nodes: list[dict[str, Any]], *diagnoses: list[dict[str, Any]]) -> None:
        super().__init__(ClientConfig())
        self._nodes, self._diagnoses = nodes, diagnoses

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def diagnoses(self) -> list[dict[str, Any]]:
        return [{"id": "running", "state": "running"}] + [
            {"id": str(i), "state": "done"} for i in range(len(self._diagnoses))
        ]

    def diagnosis(self, name: str) -> dict[str, Any]:
        return {"verdicts": self._diagnoses[int(name)]}


def test_nodes_in_the_order_of_their_switches() -> None:
    found = read_live(Pretended([node("n1", "b"), node("n2", "a"), node("n3", "b"), node("n4", "a")]))
    assert [one.name for one in found.nodes] == ["n2", "n4", "n1", "n3"]
    assert found.nodes[0].nic == "infiniband"
    assert found.nodes[0].beta == pytest.approx(2 * 8 / 200e9)  # one NIC for two GPUs


def test_the_newest_figure_of_each_node_counts() -> None:
    newer = [verdict("n1", 10e9), verdict("n1", 1.0, "link between switches a and b"), verdict("n2", None)]
    found = read_live(Pretended([node("n1", "a"), node("n2", "a")], newer, [verdict("n1", 99e9), verdict("n2", 20e9)]))
    assert found.link(0, 2).beta == pytest.approx(1 / 15e9)  # the median of 10e9 and 20e9: 99e9 is older
    slow = read_live(Pretended([node("n1", "a"), node("n2", "a")], [verdict("n1", 1e9)], [verdict("n1", 99e9)]))
    assert slow.link(0, 2).beta == pytest.approx(1 / 1e9)


def test_nodes_that_no_job_can_use_are_left_out(capsys: Capture) -> None:
    nodes = [node("n1", "a"), node("n2", "a", state="cordoned"), node("n3", "a", connected=False)]
    assert read_live(Pretended(nodes)).world == 2
    assert "left out, for no job can use them now: n2, n3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "no agent has reported to .*: start agents, or give --cluster a file"),
        ([node("n1", "a", state="lost")], "none of the 1 nodes of .* can be used now"),
        ([node("n1", "a", gpus=[])], "--cluster live: n1 reports no GPU"),
        ([node("n1", "a"), node("n2", "a", nics=[])], "n2 reports no speed of its NICs: .* give --link-gbit"),
    ],
)
def test_what_is_lacking_is_one_line(nodes: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_live(Pretended(nodes))


def test_the_command_plans_on_it_and_writes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    nodes = [node("n1", "p/a"), node("n2", "p/b")]
    nodes[1]["nics"][0]["speed_bps"] = 0
    monkeypatch.setattr(Client, "nodes", lambda self: nodes)
    monkeypatch.setattr(Client, "diagnoses", lambda self: [])
    place = tmp_path / "cluster.toml"
    words = ["plan", "--set", "train.micro_batches=4", "--cluster"]
    assert main([*words, "live", "--link-gbit", "100", "--save-cluster", str(place), "--json"]) == 0
    live = json.loads(capsys.readouterr().out)
    kept = parse(place.read_text())
    assert kept.link(0, 2).beta == pytest.approx(8 / 100e9)
    assert main([*words, str(place), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [one["step_s"] for one in again["layouts"]] == pytest.approx([one["step_s"] for one in live["layouts"]])
    assert main([*words, str(place), "--link-gbit", "100"]) == 2
    assert "go with --cluster live" in capsys.readouterr().err
    assert main([*words, "live", "--link-gbit", "-1"]) == 2
    assert main([*words, "live", "--save-cluster", str(tmp_path)]) == 2
    assert main([*words, "live"]) == 2
    assert "n2 reports no speed of its NICs" in capsys.readouterr().err
