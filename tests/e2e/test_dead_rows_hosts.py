"""A pair of hosts that cannot reach each other for a while, at the start and in training: the job goes on in its first
life, as it does under torchrun. Each host is a network namespace."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.cli.common.client import Client
from tests.cables import Cables, can_filter, inside, missing
from tests.e2e.daemons import Commands, Json, acted_on, ready, wait_for

WHY = missing() or ("" if can_filter() else "needs nft (nftables)")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY)]

SCRIPT = Path(__file__).parent / "scripts" / "dead_rows.py"
HOSTS = ("n0", "n1", "n2", "n3")
START_S, TRAINING_S = 6.0, 13.0
"""Seconds that the cuts last: ranks were ended after 2 s and after 10 s."""


@dataclass
class Site:
    cables: Cables
    client: Client

    def job(self) -> Json:
        return self.client.job() or {}

    def cut_for(self, seconds: float) -> None:
        """The duration of a fault: it is not waited for anything."""
        self.cables.part("n1", "n2", True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.job()["generation"] == 1, [one["summary"] for one in self.client.incidents()]
            time.sleep(0.1)
        self.cables.part("n1", "n2", False)


@pytest.fixture
def site(holdfast: Commands, tmp_path: Path) -> Iterator[Site]:
    cables = Cables({"ctl": "s0", **dict.fromkeys(HOSTS, "s0")}, subnet="10.79.5")
    try:
        cables.lay()

        def through(host: str) -> tuple[str, ...]:
            return ("ip", "netns", "exec", cables.space(host))

        where = ("--listen-host", cables.addresses["ctl"], "--insecure", "--grpc-port", "0", "--http-port", "0")
        state = ("--state-dir", str(tmp_path / "ctl"))
        grpc, http = ready(holdfast.start("controller", *where, *state, through=through("ctl")))
        for name in HOSTS:
            words = ("agent", "--controller", grpc, "--insecure", "--node-name", name, "--slots", "1", "--nics", "eth0")
            holdfast.start(*words, "--state-dir", str(tmp_path / name), through=through(name))
        with inside(cables.space("ctl")), Client(ClientConfig(controller=http)) as client:
            wait_for(lambda: [one["state"] for one in client.nodes()] == ["healthy"] * len(HOSTS), 90, client.nodes)
            yield Site(cables, client)
    finally:
        holdfast.end()
        cables.close()


def test_a_pair_of_hosts_without_a_way_is_waited_for(site: Site, tmp_path: Path) -> None:
    site.cables.part("n1", "n2", True)
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    program = {"target": str(SCRIPT), "args": ["trains-for-long", str(tmp_path)], "module": False, "hooks": True,
               "warm": True, "cwd": str(tmp_path), "env": env}  # fmt: skip
    site.client.submit({"name": "pair", "program": program, "nnodes": len(HOSTS), "nproc_per_node": 1})
    wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == len(HOSTS), 120, site.job)
    assert [part["node"] for part in site.job()["assignment"]] == list(HOSTS)
    site.cut_for(START_S)
    wait_for(lambda: (site.job()["step"] or 0) > 20, 120, site.job)
    site.cut_for(TRAINING_S)
    (tmp_path / "end").touch()
    wait_for(lambda: site.job()["state"] in ("finished", "failed") or site.job()["generation"] > 1, 120, site.job)
    job, acted = site.job(), [one["summary"] for one in acted_on(site.client.incidents())]
    assert (job["state"], job["exit_code"], job["generation"], job["restarts"]) == ("finished", 0, 1, 0), acted
    assert acted == []
    assert {node["state"] for node in site.client.nodes()} == {"healthy"}
