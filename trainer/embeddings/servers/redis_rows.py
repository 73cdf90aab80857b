"""Rows of a server in Redis: they may be more than the server's host has memory for, and others can read them.

One hash for each server, `holdfast:embeddings:NAME:NUMBER-of-SERVERS`: a field is a key, 8 bytes, the lowest first, and
its value the row's numbers, in the same order of bytes. `holdfast:embeddings:NAME:run` has the settings of the run that
has this name. Which write-back is applied when stays with the server: a row is written by it alone, and writing one
twice changes nothing. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.plain import plain
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of

PREFIX = "holdfast:embeddings:"
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""Of a run, in keys."""
AT_ONCE = 4096
"""Rows in one command."""
REPLY_S = 30.0


class RedisRows:
    """A `RowStore`, without any rows at first: those that are there under its name are removed."""

    def __init__(self, url: str, name: str, number: int, servers: int, width: int, dtype: str) -> None:
        self._shown, self._width, self._dtype = _shown(url), width, dtype_of(dtype).newbyteorder("<")
        self._hash = f"{PREFIX}{name}:{number}-of-{servers}"
        self._redis = _library()
        self._client = _client(self._redis, url)
        with self._reported():
            # The first server is opened before the others: what more servers had goes, too.
            # A name has no character that a pattern gives a meaning to (`NAME`).
            old = self._client.scan_iter(f"{PREFIX}{name}:*-of-*") if number == 0 else ()
            for one in [*old, self._hash]:
                self._client.unlink(one)

    def __len__(self) -> int:
        with self._reported():
            return int(self._client.hlen(self._hash))

    def read(self, keys: Keys) -> tuple[Rows, npt.NDArray[np.bool_]]:
        found: list[bytes | None] = []
        with self._reported():
            for names in _pieces(_fields(keys)):
                found += self._client.hmget(self._hash, names)
        rows = np.zeros((len(keys), self._width), self._dtype)
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


def claim(url: str, name: str, settings: Mapping[str, Any]) -> None:
    """Note that the rows under this name are of a run with these settings, by option.

    UsageError for a URL that is none of Redis, for a name that is none, and where a run with other settings has this
    name; Unavailable when nothing answers. Of two runs that begin at once, one is refused.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"--tables-name {plain(name)[:100]!r}: 1 to 100 letters, digits, dots, hyphens, underscores")
    if url.partition("://")[0] not in ("redis", "rediss"):
        raise UsageError(f"--tables {plain(_shown(url))[:100]}: write redis://HOST[:PORT][/DB]")
    redis = _library()
    client = _client(redis, url)
    try:
        client.set(f"{PREFIX}{name}:run", json.dumps(settings), nx=True)
        found = client.get(f"{PREFIX}{name}:run")
    except (redis.RedisError, OSError) as error:
        raise Unavailable(f"--tables {plain(_shown(url))[:100]}: {plain(str(error))[:200]}") from None
    finally:
        client.close()
    if (other := difference(found or b"", settings)) is not None:
        raise UsageError(
            f"--tables {plain(_shown(url))[:100]} has the rows of a run called {name} {other}: give --tables-name"
            " another name, or the same setting"
        )


def difference(found: bytes, settings: Mapping[str, Any]) -> str | None:
    """How the settings in a Redis differ from these, None if they do not. Pure."""
    try:
        theirs = json.loads(found)
        differs = [name for name, value in settings.items() if theirs.get(name) != value]
    except (ValueError, AttributeError):
        return "whose settings cannot be read"
    if not differs:
        return None
    option = differs[0]
    return f"with --{option} {_given(theirs.get(option))}, not {_given(settings[option])}"


def _given(value: Any) -> str:
    return plain(str(value))[:200] or "(none)"


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
