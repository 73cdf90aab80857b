"""One job over two clusters whose NICs are of unlike types (Holmes): agents report the types, and the rest follows.

Each of four hosts is a network namespace with three networks: eth0, Ethernet by which all reach each other, slow
between the clusters; fab0, which joins the hosts of one cluster only; and mgmt, for the daemons and the store of the
job, so that nothing of theirs is counted. RDMA ports are those of a sysfs tree, since no such device is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from tests.agent.support.sysfs import Sysfs
from tests.cables import Cables, crossed_bytes, inside, missing, sent_bytes
from tests.e2e.daemons import Commands, Json, ready, wait_for

WHY = missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY)]

LAYERS = {"n0": "InfiniBand", "n1": "Ethernet", "n2": "InfiniBand", "n3": "Ethernet"}
"""Of the hosts' RDMA ports, in the order of names: InfiniBand and RoCE in turn."""
RATE = "100mbit"
"""Of the link between the clusters."""
DEPTH, WIDTH, LENGTH, BATCH, COUNT, STEPS = 4, 128, 64, 2, 8, 4
MESSAGES = 2 * COUNT * BATCH * LENGTH * WIDTH * 4
"""Bytes of a step between the two stages: 2 N b s h x 4, of the micro-batches of both replicas."""
SUMS = 2 * (2 - 1) * 4 * (DEPTH * (12 * WIDTH**2 + WIDTH) + 2 * 256 * WIDTH + WIDTH)
"""Bytes of a step between replicas: 2 (d - 1) x 4 of each parameter."""
WITHIN = 0.01
BESIDES = 20_000
"""Of a whole run: gloo's own headers, connections, and the sums of loss and norm."""
PATIENT = ("--hang-floor", "60s", "--silence-floor", "30s")
NAIVE = "from holdfast.trainer.__main__ import main\n\nraise SystemExit(main())\n"
"""The same trainer as a program of which the controller cannot know what groups it has."""


@dataclass
class Clusters:
    cables: Cables
    client: Client
    address: str
    folder: Path

    def counted(self) -> tuple[int, int]:
        """Bytes so far between the clusters, and within them by fab0."""
        switches = self.cables.space("sw")
        return crossed_bytes(switches), sent_bytes(switches, "fab0")


@pytest.fixture
def clusters(holdfast: Commands, tmp_path: Path) -> Iterator[Clusters]:
    cables = Cables({"ctl": "s-Infi", **{name: f"s-{layer[:4]}" for name, layer in LAYERS.items()}}, subnet="10.79.1")
    try:
        cables.lay()
        cables.narrow(RATE)
        cables.network("fab0", "10.79.2", {name: f"f-{layer[:4]}" for name, layer in LAYERS.items()})
        where = cables.network("mgmt", "10.79.3", dict.fromkeys(("ctl", *LAYERS), "daemons"))["ctl"]

        def start(host: str, *words: str) -> Any:
            through = ("ip", "netns", "exec", cables.space(host))
            return holdfast.start(*words, "--state-dir", str(tmp_path / host), through=through)

        controller = start("ctl", "controller", "--listen-host", where, "--insecure", "--grpc-port", "0",
                           "--http-port", "0", *PATIENT)  # fmt: skip
        grpc, http = ready(controller)
        for name, layer in LAYERS.items():
            sysfs = tmp_path / f"sys-{name}"
            Sysfs(sysfs).rdma("mlx5_0", layer=layer)
            (sysfs / "class/net").symlink_to("/sys/class/net")
            start(name, "agent", "--controller", grpc, "--insecure", "--node-name", name, "--slots", "4",
                  "--sysfs-root", str(sysfs), "--sample-interval", "0.05")  # fmt: skip
        with inside(cables.space("ctl")), Client(ClientConfig(controller=http)) as client:
            wait_for(lambda: [one["state"] for one in client.nodes()] == ["healthy"] * 4, 90, client.nodes)
            yield Clusters(cables, client, http, tmp_path)
    finally:
        holdfast.end()
        cables.close()


def train(at: Clusters, nodes: int, program: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Json, list[float]]:
    """The finished job and its losses. Nothing here says where its ranks are to be."""
    text = at.folder / "text"
    text.mkdir(exist_ok=True)
    (text / "a.txt").write_text("all that is written is written twice " * 2000)
    settings = {
        "model.layers": DEPTH, "model.d_model": WIDTH, "model.heads": 4, "data.seq_len": LENGTH,
        "data.cache_dir": at.folder / "cache", "train.micro_batches": COUNT, "train.micro_batch_size": BATCH,
        "train.log_every": 0, "parallel.pp": 2, "parallel.dp": 2, "parallel.timeout_s": 100, "parallel.device": "cpu",
        "transport.networks": "by-nic", "transport.within": "ib0,fab0", "transport.across": "eth0",
    }  # fmt: skip
    words = ["--data", str(text), "--steps", str(STEPS)]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    options = ["--controller", at.address, "--nnodes", str(nodes), "--nproc-per-node", str(4 // nodes), "--detach",
               "--no-env", "--env", "OMP_NUM_THREADS=1"]  # fmt: skip
    assert main(["run", *options, *program, *words]) == 0
    name = capsys.readouterr().out.strip()

    def job() -> Json:
        return at.client.job(name) or {}

    wait_for(lambda: job().get("state") in ("finished", "failed"), 150, job)
    assert job()["state"] == "finished", at.client.incidents(name)
    steps = at.client.steps(job=name)
    assert steps["step"] == list(range(STEPS))
    return job(), steps["loss"]


def test_ranks_are_placed_by_what_agents_report_and_each_group_goes_by_its_own_network(
    clusters: Clusters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only messages of the pipeline cross, and replicas sum up on their fabric. A job of which the controller knows no
    groups has its nodes in the order of names: sums cross, and messages do not. Losses are those of one host."""
    naive = tmp_path / "naive.py"
    naive.write_text(NAIVE)
    trainer = ["-m", "holdfast.trainer"]
    counted, losses, orders = [clusters.counted()], {}, {}
    for order, nodes, program in (("by type", 4, trainer), ("by name", 4, [str(naive)]), ("one host", 1, trainer)):
        job, losses[order] = train(clusters, nodes, program, capsys)
        orders[order] = [LAYERS[one["node"]] for one in job["assignment"]]
        assert job["generation"] == 1
        counted.append(clusters.counted())
    sent = [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(counted)]
    print(sent, losses)
    first, second, third, fourth = orders["by type"]
    assert first == second != third == fourth
    assert orders["by name"] == list(LAYERS.values())
    assert losses["by type"] == losses["by name"] == losses["one host"]
    messages, sums = STEPS * MESSAGES, STEPS * SUMS
    for (crossed, within), across, fabric in ((sent[0], messages, sums), (sent[1], sums, messages)):
        assert abs(crossed - across) <= WITHIN * across + BESIDES
        assert abs(within - fabric) <= WITHIN * fabric + BESIDES
    assert sent[2] == pytest.approx((0, 0), abs=BESIDES)
