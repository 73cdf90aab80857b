"""Which network each group goes through, and what torch is given for it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.facts.nics import TYPES
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import need
from holdfast.planner.cost.layout import Layout
from holdfast.planner.unlike.transports import transports
from holdfast.trainer.mesh import by_nic, mesh
from holdfast.trainer.mesh.networks import (
    Network,
    Networks,
    check_environment,
    declared,
    named,
    numbered,
    present,
)
from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.optim import slices
from holdfast.trainer.settings.config import TransportConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.load import load

MINUTE = timedelta(minutes=1)
FAST = Networks(("infiniband", "infiniband", "roce", "roce", "ethernet", "ethernet"), "ib0")


@pytest.mark.parametrize(
    ("ranks", "net", "interface"),
    [
        ((0, 1), "", "ib0"),  # RDMA, by whatever NCCL has for it
        ((2, 3), "", "ib0"),
        ((4, 5), "Socket", "ib0"),  # alike, and no RDMA
        ((1, 2), "Socket", ""),  # both have RDMA, which does not meet
        ((0, 4), "Socket", ""),
        (tuple(range(6)), "Socket", ""),
        ((0,), "", ""),
        ((4,), "", ""),
    ],
)
def test_a_group_has_the_network_that_its_members_share(ranks: tuple[int, ...], net: str, interface: str) -> None:
    assert FAST.of(ranks) == Network(net, interface)
    assert Networks(FAST.nics).of(ranks) == Network(net)


def test_stages_of_one_type_have_a_group_beside_their_pipelines() -> None:
    line = (0, 2, 1, 3, 4)  # of InfiniBand, RoCE, InfiniBand, RoCE, Ethernet
    assert [FAST.near(line, rank) for rank in line] == [(0, 1), (2, 3), (0, 1), (2, 3), ()]
    assert FAST.near((0, 1), 0) == ()  # the pipeline is of one type
    assert Networks(FAST.nics).near((0, 4, 5), 5) == ()  # by TCP either way
    assert Networks(FAST.nics).near((0, 1, 4), 1) == (0, 1)


def test_the_plans_groups_have_the_plans_transports() -> None:
    """Of every group, and every link between stages, as `holdfast plan` counts them: two pipelines of four stages,
    of which the two in the middle are of unlike types."""
    nics = ("roce",) * 4 + ("infiniband",) * 4
    nodes = tuple(Node(f"n{i}", 1, nic=nic, ethernet_beta=1e-9) for i, nic in enumerate(nics))
    cluster, networks = Cluster(need("A100"), nodes, {Level.SWITCH: Hop(1e-5, 1e-9)}), Networks(nics)
    planned = list(transports(cluster, Layout(4, 2, 1)))
    assert Counter((one.axis, networks.of(one.ranks).net) for one in planned) == {
        ("dp", ""): 4, ("pp", ""): 4, ("pp", "Socket"): 2
    }  # fmt: skip
    assert all(one.transport.is_rdma != bool(networks.of(one.ranks).net) for one in planned)


def test_what_ranks_exchange_are_types() -> None:
    assert named([numbered(one) for one in TYPES[:3]]) == TYPES[:3]
    # One agent does not say which RDMA it has: all that have it count as alike.
    assert named([numbered(one) for one in TYPES]) == ("ethernet", "rdma", "rdma", "rdma")


def test_the_first_interface_that_the_host_has() -> None:
    assert present("within", "ib0, bond0,eth0", ("lo", "eth0", "bond0")) == "bond0"
    assert present("within", "", ("lo",)) == ""
    with pytest.raises(
        ConfigError, match=r"transport\.across = ib0,ib1: this host has no such interface, it has eth0, lo"
    ) as refused:
        present("across", "ib0,ib1", ("lo", "eth0"))
    assert refused.value.is_local


def test_the_hosts_type_is_one_that_there_is() -> None:
    assert declared({}) == ""
    assert declared({"HOLDFAST_NIC": "roce"}) == "roce"
    with pytest.raises(ConfigError, match="HOLDFAST_NIC=fddi in the environment: must be one of ethernet, infiniband"):
        declared({"HOLDFAST_NIC": "fddi"})


def test_a_network_for_all_groups_in_the_environment_is_refused() -> None:
    """NCCL's envConfigOverride puts NCCL_NET above netName."""
    check_environment({"NCCL_SOCKET_IFNAME": "eth0"})
    with pytest.raises(ConfigError, match="NCCL_NET=Socket in the environment is for all groups"):
        check_environment({"NCCL_NET": "Socket"})


@pytest.mark.parametrize("key", ["within", "across"])
def test_an_interface_without_networks_by_nic_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"transport\.{key} = ib0 is for groups .* set transport\.networks = by-nic"):
        load(overrides=[(f"transport.{key}", "ib0")])
    load(overrides=[(f"transport.{key}", "ib0"), ("transport.networks", "by-nic")])


def test_every_group_of_a_rank_goes_by_its_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are made later than the mesh: where pipes, stages, tied tables and messages need them."""
    made: dict[str, tuple[tuple[int, ...], Networks | None]] = {}

    def group_of(ranks: Iterable[int], timeout: timedelta, name: str, networks: Networks | None = None) -> Any:
        made[name] = tuple(ranks), networks
        return dist.group.WORLD

    monkeypatch.setattr(mesh, "group_of", group_of)
    monkeypatch.setattr(slices, "group_of", group_of)
    networks = Networks(("infiniband",) * 8 + ("roce",) * 8, "ib0")
    with rank_of(TrainerLayout(4, 2, 2, 1, 8)) as plain:
        one = replace(plain, networks=networks)
        one.second_pp_group()
        one.whole_stages()
        slices._pair_group(one)
        near = one.near_pp_group()
        assert plain.near_pp_group() is None
    assert made == {
        "pp-back": ((0, 4, 8, 12), networks),
        "stage": ((0, 1, 2, 3), networks),
        "tied": ((0, 12), networks),
        "pp-near": ((0, 4), networks),
    }
    assert near is not None
    assert near[1] == {0: 0, 1: 1}


@pytest.mark.parametrize("within", ["", "ib0"])
def test_the_group_of_all_ranks_serves_an_axis_unless_that_one_listens_elsewhere(
    monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    monkeypatch.setattr(mesh, "everyone", lambda: "all")
    made = mesh._made(TrainerLayout(1, 4, 1, 1, 8), Networks(("roce",) * 4, within))
    assert made == ({} if within else {(0, 1, 2, 3): "all"})


class Options:
    """As much of `ProcessGroupNCCL.Options` as is used; this torch has no NCCL."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(net_name=None)
        self._timeout = timedelta(seconds=7)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A torch with NCCL: what groups were made with, and where gloo would have listened."""
    made: list[dict[str, Any]] = []

    def new_group(ranks: list[int], **how: Any) -> str:
        made.append({"ranks": ranks, "listens": os.environ.get("GLOO_SOCKET_IFNAME"), **how})
        return "group"

    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    return made


def test_torch_is_given_the_network_of_each_group(nccl: list[dict[str, Any]]) -> None:
    for ranks in ((0, 1), (1, 2), (4, 5)):
        mesh.group_of(ranks, MINUTE, "dp", FAST)
    mesh.group_of((0, 2), MINUTE, "dp")
    alike, unlike, plain, without = nccl
    assert [one["listens"] for one in nccl] == ["ib0", "eth0", "ib0", "eth0"]
    assert alike["pg_options"] is without["pg_options"] is None
    assert [one["pg_options"].config.net_name for one in (unlike, plain)] == ["Socket"] * 2
    assert unlike["pg_options"]._timeout == MINUTE
    assert unlike["pg_options"] is not plain["pg_options"]  # torch writes a group's name into its options
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_gloo_alone_is_given_no_options_of_nccl(nccl: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:gloo")
    mesh.group_of((1, 2), MINUTE, "pp", FAST)
    assert nccl[0]["pg_options"] is None


def test_gloo_listens_where_it_did_after_a_group_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen_and_fail(env: dict[str, str]) -> None:
        with by_nic.listening(Network(interface="ib0"), env):
            assert env["GLOO_SOCKET_IFNAME"] == "ib0"
            raise RuntimeError

    for env in ({"GLOO_SOCKET_IFNAME": "lo"}, dict[str, str]()):
        before = dict(env)
        with pytest.raises(RuntimeError):
            listen_and_fail(env)
        assert env == before


def test_the_group_of_all_ranks_goes_by_tcp_where_types_meet() -> None:
    """It is made before ranks know of each other's NICs: its options are changed before its first collective."""
    own = Options()
    group: Any = SimpleNamespace(_get_backend=lambda device: SimpleNamespace(options=own))
    by_nic.set_network(group, FAST.of((0, 1)))
    assert own.config.net_name is None
    by_nic.set_network(group, FAST.of(range(6)))
    assert own.config.net_name == "Socket"


def test_before_ranks_meet(nccl: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    env: dict[str, str] = {}
    by_nic.prepare(TransportConfig(networks="by-nic", across="nothing,lo"), env, True)
    assert env == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    env = {"GLOO_SOCKET_IFNAME": "eth7"}
    by_nic.prepare(TransportConfig(networks="by-nic", across="lo"), env, False)
    assert env["GLOO_SOCKET_IFNAME"] == "eth7"
    for wrong in (
        TransportConfig(networks="by-nic", within="none0"),
        TransportConfig(networks="by-nic", across="none0"),
    ):
        with pytest.raises(ConfigError, match="none0: this host has no such interface"):
            by_nic.prepare(wrong, {}, False)
    monkeypatch.setattr(Options, "__init__", lambda self: setattr(self, "config", SimpleNamespace()))
    with pytest.raises(ConfigError, match=r"NCCL of torch .* has no network by group"):
        by_nic.prepare(TransportConfig(networks="by-nic"), {}, True)
