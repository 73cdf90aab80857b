"""Rendezvous of a job's ranks: torch's TCP store from the environment, or Redis; and what it costs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import (  # what `torch.distributed.Store` is, where type checkers see it
    PrefixStore,
    Store,
)
from torch.distributed.rendezvous import rendezvous

from holdfast.trainer.mesh.redis_store import RedisStore
from holdfast.trainer.settings.launch import Launch

LAZY = "TORCH_GLOO_LAZY_INIT"
"""Set to 1, gloo connects two ranks when they first communicate, instead of all with all when a group is made."""


def open_store(where: str, launch: Launch, env: MutableMapping[str, str], timeout: timedelta) -> Store:
    """This rank's store for this generation: `env`, or `redis://HOST:PORT/DB`. The caller holds on to it.

    Where the store outlives every rank, gloo is set to connect late (unless `env` already says anything on that):
    store operations of a rank then do not grow with the number of ranks. Raises ConfigError, DistNetworkError.
    """
    if not launch.is_distributed:
        return dist.HashStore()  # type: ignore[attr-defined]  # public, but torch forgot to list it
    if outlives_ranks(where, env):
        env.setdefault(LAZY, "1")
    if where != "env":
        return RedisStore(where, generation_name(launch, env), timeout)
    met: tuple[Store, int, int] = next(rendezvous("env://", launch.rank, launch.world, timeout=timeout))
    # torchrun keeps one store over all restarts: without this, ranks would meet the addresses of the dead.
    return PrefixStore(str(launch.generation), met[0])


def outlives_ranks(where: str, env: Mapping[str, str]) -> bool:
    """Whether the store outlives every rank. One that rank 0 hosts does not."""
    return where != "env" or env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def generation_name(launch: Launch, env: Mapping[str, str]) -> str:
    """A name that all ranks of this generation of the job share, and no other generation does."""
    job = launch.job or env.get("TORCHELASTIC_RUN_ID", "")
    # Jobs of other launchers may have equal names; the address of their rendezvous distinguishes them.
    place = f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}"
    return f"{job}:{launch.generation}:{hashlib.sha256(place.encode()).hexdigest()[:8]}"


class CountingStore(Store):
    """Any store, with its operations counted by name. Costs a Python call for each: for tests and benchmarks."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store: Any = store
        self.operations: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.operations.values())

    def _do(self, name: str, *words: Any) -> Any:
        self.operations[name] += 1
        return getattr(self.store, name)(*words)

    def set(self, key: str, value: str) -> None:
        self._do("set", key, value)

    def get(self, key: str) -> Any:
        return self._do("get", key)

    def add(self, key: str, amount: int) -> Any:
        return self._do("add", key, amount)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._do("wait", keys, *([timeout] if timeout is not None else []))

    def check(self, keys: list[str]) -> Any:
        return self._do("check", keys)

    def compare_set(self, key: str, expected: str, desired: str) -> Any:
        return self._do("compare_set", key, expected, desired)

    def multi_get(self, keys: list[str]) -> Any:
        return self._do("multi_get", keys)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        self._do("multi_set", keys, values)

    def append(self, key: str, value: str) -> None:
        self._do("append", key, value)

    def delete_key(self, key: str) -> Any:
        return self._do("delete_key", key)

    def num_keys(self) -> Any:
        return self._do("num_keys")

    def clone(self) -> Store:
        return self

    def has_extended_api(self) -> Any:
        return self.store.has_extended_api()

    deleteKey = delete_key  # torch has no Python name for these two
    getNumKeys = num_keys
