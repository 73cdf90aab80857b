"""Ranks on hosts of their own, under two switches: what a step of the trainer sends from one switch to the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from counting import meet

from holdfast.trainer.__main__ import parse
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.mesh.mesh import choose_device, join, leave
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment
from holdfast.trainer.settings.layout import plan
from tests.cables import crossed_bytes, inside, sent_bytes


def crossing(
    folder: Path, argv: list[str], spaces: list[str], switches: str, steps: int, nics: dict[str, str] | None = None
) -> dict[str, Any]:
    """Bytes between the switches in `steps` steps, after one step that connects; the losses of all of them.

    `spaces`: by rank, the network namespace of its host. Ranks meet in a file, which sends nothing. `nics`: by host,
    its type of NIC; bytes within the clusters, by the hosts' fab0, are counted then too.
    """
    torch.set_num_threads(1)
    config, launch = parse(argv), from_environment(os.environ)
    with inside(spaces[launch.rank]):
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        if nics:
            os.environ["HOLDFAST_NIC"] = nics[spaces[launch.rank]]
        corpus = open_corpus(config.data)
        layout = plan(config, launch.world, corpus.vocab)
        store = dist.FileStore(str(folder / "store"), launch.world)
        mesh = join(config, launch, layout, choose_device(config, launch), store)
        try:
            trainer = loop.Trainer(config, mesh, corpus)
            readings, fabric, done, losses = list[int](), list[int](), 0, list[float]()
            for number, count in enumerate((1, steps)):
                for _ in range(count):
                    losses.append(trainer.step(done).loss)
                    done += 1
                meet(folder, launch, 2 * number)
                readings.append(crossed_bytes(switches) if launch.rank == 0 else 0)
                fabric.append(sent_bytes(switches, "fab0") if nics and launch.rank == 0 else 0)
                meet(folder, launch, 2 * number + 1)  # no rank goes on before the first one has read
        finally:
            leave()
        return {"crossed": readings[1] - readings[0], "within": fabric[1] - fabric[0], "losses": losses}
