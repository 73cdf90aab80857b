"""Rows of a server in Redis: they may be more than the server's host has memory for, and others can read them.

One hash for each server, `holdfast:embeddings:NUMBER-of-SERVERS`: a field is a key, 8 bytes, the lowest first, and its
value the row's numbers, in the same order of bytes. Which write-back is applied when stays with the server: a row is
written by it alone, and writing one twice changes nothing. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.plain import plain
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of

PREFIX = "holdfast:embeddings:"
AT_ONCE = 4096
"""Rows in one command."""
REPLY_S = 30.0


class RedisRows:
    """A `RowStore`, without any rows at first: those of an earlier run are removed."""

    def __init__(self, url: str, number: int, servers: int, dim: int, dtype: str) -> None:
        self._shown, self._dim, self._dtype = _shown(url), dim, dtype_of(dtype).newbyteorder("<")
        self._hash = f"{PREFIX}{number}-of-{servers}"
        self._redis = _library()
        self._client = _client(self._redis, url)
        with self._reported():
            # The first server is opened before the others: what more servers had goes, too.
            for name in [*(self._client.scan_iter(f"{PREFIX}*") if number == 0 else ()), self._hash]:
                self._client.unlink(name)

    def __len__(self) -> int:
        with self._reported():
            return int(self._client.hlen(self._hash))

    def read(self, keys: Keys) -> tuple[Rows, npt.NDArray[np.bool_]]:
        found: list[bytes | None] = []
        with self._reported():
            for names in _pieces(_fields(keys)):
                found += self._client.hmget(self._hash, names)
        rows = np.zeros((len(keys), self._dim), self._dtype)
        for at, content in enumerate(found):
            if content is not None:
                rows[at] = np.frombuffer(content, self._dtype)
        there = np.array([content is not None for content in found], dtype=np.bool_)
        return rows.astype(self._dtype.newbyteorder("="), copy=False), there

    def write(self, keys: Keys, rows: Rows) -> None:
        contents = [row.tobytes() for row in rows.astype(self._dtype, copy=False)]
        with self._reported():
            for some in _pieces(list(zip(_fields(keys), contents, strict=True))):
                self._client.hset(self._hash, mapping=dict(some))

    def keys(self) -> Keys:
        with self._reported():
            names = self._client.hkeys(self._hash)
        return np.sort(np.frombuffer(b"".join(names), dtype="<u8").astype(np.uint64))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (self._redis.RedisError, OSError) as error:
            raise HoldfastError(f"the tables in {self._shown}: {plain(str(error))[:200]}") from None


def check(url: str) -> None:
    """UsageError for a URL that is none of Redis, Unavailable when nothing answers there."""
    if url.partition("://")[0] not in ("redis", "rediss"):
        raise UsageError(f"--tables {plain(_shown(url))[:100]}: write redis://HOST[:PORT][/DB]")
    redis = _library()
    client = _client(redis, url)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        raise Unavailable(f"--tables {plain(_shown(url))[:100]}: {plain(str(error))[:200]}") from None
    finally:
        client.close()


def _fields(keys: Keys) -> list[bytes]:
    return [key.tobytes() for key in keys.astype("<u8")]


def _pieces(items: list[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(items), AT_ONCE):
        yield items[at : at + AT_ONCE]


def _shown(url: str) -> str:
    """Without a password."""
    scheme, slashes, rest = url.partition("://")
    return scheme + slashes + rest.rpartition("@")[2]


def _library() -> Any:
    try:
        import redis  # here: only these tables need it
    except ImportError:
        raise UsageError("--tables needs the redis library: pip install 'holdfast[redis]'") from None
    return redis


def _client(redis: Any, url: str) -> Any:
    try:
        return redis.Redis.from_url(url, socket_connect_timeout=REPLY_S, socket_timeout=REPLY_S)
    except ValueError as error:
        raise UsageError(f"--tables {plain(_shown(url))[:100]}: {plain(str(error))[:200]}") from None
