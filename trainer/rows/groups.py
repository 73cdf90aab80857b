"""What making process groups takes, and how long each waits. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

from holdfast.trainer.rows.network import timeouts as of_network
from holdfast.trainer.rows.row import Row

TIMEOUT_S = 7.0


def set_up() -> Iterator[Row]:
    """Two counts in the store for each group a rank is in, and two for that of all ranks, where torch waits for all
    members of each group that is made: not one for each group of the job (MegaScale, 3.5: O(n) instead of O(n^2))."""
    for sizes in ((2, 2, 2), (4, 8, 4), (16, 32, 8)):
        pp, dp, tp = sizes
        counts, members = _made(sizes)
        yield Row(f"counts in the store by a rank, pp {pp}, dp {dp}, tp {tp}", 2 * len(sizes) + 2, counts)
        expected = pp * dp * tp + pp + dp + tp
        yield Row(f"ranks it waits for in all, pp {pp}, dp {dp}, tp {tp}", expected, members)
    # Axes with the same ranks share a group: here pp has all of them, dp and tp this one alone.
    groups = {frozenset(range(4)), frozenset({0})}
    counts, _ = _made((4, 1, 1))
    yield Row("counts in the store by a rank, pp 4, dp 1, tp 1", 2 * len(groups), counts)


def timeouts() -> Iterator[Row]:
    """Of the network's layers, and `parallel.timeout_s` in every group of a job."""
    yield from of_network.timeouts()
    for name, seconds in _patience():
        yield Row(f"seconds that a group waits, timeout {TIMEOUT_S:g}, {name}", TIMEOUT_S, seconds)


def _made(sizes: tuple[int, int, int]) -> tuple[int, int]:
    """Counts of rank 0 while it makes the groups of a job alone, and ranks that torch would wait for meanwhile."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store
    from torch.distributed import distributed_c10d

    from holdfast.trainer.mesh.mesh import _own_groups
    from holdfast.trainer.settings.layout import TrainerLayout

    class CountingStore(Store):
        """In which all others have always counted already."""

        counts = 0

        def add(self, key: str, value: int) -> int:
            self.counts += 1
            return 0

        def wait(self, *args: Any) -> None: ...

        def set(self, *args: Any) -> None: ...

    store, members = CountingStore(), []
    original = distributed_c10d._store_based_barrier

    def noted(rank: int, where: Store, name: Any, count: int, *args: Any) -> None:
        members.append(count)
        original(rank, where, name, count, *args)

    layout = TrainerLayout(*sizes, 1, 1)
    timeout = timedelta(seconds=TIMEOUT_S)
    # It no longer waits unless it is asked to. What it did then is what grew.
    with (
        mock.patch.dict("os.environ", {"TORCH_DIST_INIT_BARRIER": "1"}),
        mock.patch.object(distributed_c10d, "_store_based_barrier", noted),
    ):
        import torch.testing._internal.distributed.fake_pg  # the backend

        dist.init_process_group("fake", store=store, rank=0, world_size=layout.world)
        try:
            _own_groups(layout, 0, torch.device("cpu"), timeout)
        finally:
            dist.destroy_process_group()
    return store.counts, sum(members)


def _patience() -> list[tuple[str, float]]:
    """By group of a job of one rank, on the real backend, which keeps what it was given."""
    import torch
    from torch._C._distributed_c10d import HashStore

    from holdfast.trainer.mesh.mesh import everyone, join, leave
    from holdfast.trainer.settings.launch import from_environment
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.settings.load import load

    config = load(overrides=[("parallel.timeout_s", TIMEOUT_S)])
    device = torch.device("cpu")
    mesh = join(config, from_environment({}), plan(config, 1, 256), device, HashStore())
    try:
        groups = {
            "of all ranks": everyone(),
            "back along the pipeline": mesh.second_pp_group(),
            "pipes": mesh.replicas.get_group(),
        }
        return [(name, group._get_backend(device).options._timeout.total_seconds()) for name, group in groups.items()]
    finally:
        leave(mesh.store)
