"""torch's key-value store, kept in Redis: ranks of one generation meet there instead of at one rank's TCP server.

All keys of a generation are fields of one Redis hash, which expires: nothing is left behind, even by a job that was
killed. A rank that waits for a key listens to a channel of that key's name and looks again at growing intervals, so
that a lost message costs a moment and never a hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store  # what `torch.distributed.Store` is, where type checkers see it

from holdfast.trainer.settings.errors import ConfigError

EXPIRY_S = 3600.0
"""Lifetime of a generation's keys after the last write or `keep_alive`."""
RETIRED_S = 60.0
"""Lifetime of the keys once the job is done: a slower rank may still want one."""
_CONNECT_S = 10.0
_LOOK_AGAIN_S = (0.05, 1.0)  # first and longest time that a waiter relies on messages alone

# torch's compareSet: an absent key counts as equal to an empty expectation, and returns what was expected.
_COMPARE_SET = """
local now = redis.call('HGET', KEYS[1], ARGV[1])
if now == ARGV[2] or (not now and ARGV[2] == '') then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('PUBLISH', ARGV[5], '')
  return ARGV[3]
end
return now or ARGV[2]
"""


class RedisStore(Store):
    """A `torch.distributed.Store` in Redis. Any thread may use it; a forked child may not.

    torch keeps no reference to the Python half of a store: hold on to it for as long as the process group exists.
    Commands are not repeated when the connection breaks, since an `add` might then count twice: that is a
    DistNetworkError, and the job starts again.
    """

    timeout: timedelta
    """Of torch's half, which torch itself may set."""

    def __init__(self, url: str, name: str, timeout: timedelta) -> None:
        """Connect to `redis://HOST[:PORT][/DB]` or `rediss://`; `name` is this generation's own.

        Raises ConfigError when the library is missing or no server answers there.
        """
        super().__init__()
        self.set_timeout(timeout)
        self._redis = _library()
        self.url, self.name = url, f"holdfast:rendezvous:{name}"
        self._kept_until = 0.0
        self._bells = threading.local()
        self._client = _connected(self._redis, url)
        self._compare_set = self._client.register_script(_COMPARE_SET)

    # --- what torch calls ----------------------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        self._write(("HSET", self.name, key, value), (key,))

    def get(self, key: str) -> bytes:
        """Waits until a rank has set it."""
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        return int(self._write(("HINCRBY", self.name, key, amount), (key,)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._await(list(keys), timeout or self.timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return all(value is not None for value in self._values(list(keys)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        seconds = int(EXPIRY_S)
        with _translated(self):
            found: bytes = self._compare_set([self.name], [key, expected, desired, seconds, self._channel(key)])
        return found

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._await(list(keys), self.timeout)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        pairs = [word for pair in zip(keys, values, strict=True) for word in pair]
        self._write(("HSET", self.name, *pairs), keys)

    def delete_key(self, key: str) -> bool:
        with _translated(self):
            return bool(self._client.hdel(self.name, key))

    def num_keys(self) -> int:
        with _translated(self):
            return int(self._client.hlen(self.name))

    def clone(self) -> Store:
        return self

    def has_extended_api(self) -> bool:
        return True

    def append(self, key: str, value: str | bytes) -> None:
        text = value.encode() if isinstance(value, str) else value
        known = self._values([key])[0] or b""
        while (found := self.compare_set(key, known, known + text)) != known + text:
            known = found

    # By these names torch looks up the two that it has no Python name for.
    deleteKey = delete_key
    getNumKeys = num_keys

    # --- lifetime of the keys ------------------------------------------------------------------------------------

    def keep_alive(self) -> None:
        """Push the expiry back when it is due. Cheap to call after every step."""
        now = time.monotonic()
        if now > self._kept_until:
            self._kept_until = now + EXPIRY_S / 4
            with _translated(self):
                self._client.expire(self.name, int(EXPIRY_S))

    def close(self, done: bool) -> None:
        """Disconnect; `done`: the job needs the keys no more, apart from ranks that are a moment late."""
        try:
            if done:
                self._client.expire(self.name, int(RETIRED_S))
            self._client.close()
        except self._redis.RedisError:
            pass  # the keys expire by themselves

    # --- inside --------------------------------------------------------------------------------------------------

    def _channel(self, key: str) -> str:
        return f"{self.name}:{key}"

    def _write(self, command: tuple[Any, ...], keys: Sequence[str]) -> Any:
        """One round trip: write, push the expiry back, wake the waiters."""
        with _translated(self):
            batch = self._client.pipeline(transaction=False)
            batch.execute_command(*command)
            batch.expire(self.name, int(EXPIRY_S))
            for key in keys:
                batch.publish(self._channel(key), b"")
            return batch.execute()[0]

    def _values(self, keys: list[str]) -> list[bytes | None]:
        with _translated(self):
            found: list[bytes | None] = self._client.hmget(self.name, keys)
        return found

    def _await(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        """The values of all keys, as soon as they are there. Raises DistStoreError after `timeout`."""
        if not keys:
            return []
        values = self._values(keys)
        if None not in values:
            return [value for value in values if value is not None]
        end = time.monotonic() + timeout.total_seconds()
        bell = self._bell()
        missing = [self._channel(key) for key, value in zip(keys, values, strict=True) if value is None]
        patience, longest = _LOOK_AGAIN_S
        with _translated(self):
            bell.subscribe(*missing)
            try:
                for _ in missing:
                    bell.get_message(timeout=_CONNECT_S)  # from its confirmation on, no message is missed
                while None in (values := self._values(keys)):
                    left = end - time.monotonic()
                    if left <= 0:
                        absent = [k for k, value in zip(keys, values, strict=True) if value is None]
                        raise dist.DistStoreError(
                            f"Timed out waiting {timeout.total_seconds():g} s for {', '.join(absent)} in Redis"
                        )
                    bell.get_message(timeout=min(left, patience))
                    patience = min(2 * patience, longest)
            finally:
                bell.unsubscribe()
                while bell.subscribed and bell.get_message(timeout=_CONNECT_S) is not None:
                    pass  # up to the last confirmation, so that the next wait begins in silence
        return [value for value in values if value is not None]

    def _bell(self) -> Any:
        """This thread's own connection for listening."""
        if not hasattr(self._bells, "bell"):
            self._bells.bell = self._client.pubsub()
        return self._bells.bell


class _translated:
    """Redis' errors as those that torch's callers know. A context manager."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._store._redis.RedisError | OSError):
            raise dist.DistNetworkError(f"rendezvous at {shown(self._store.url)}: {error}") from None


def shown(url: str) -> str:
    """The address without a password."""
    scheme, slashes, rest = url.partition("://")
    return scheme + slashes + rest.rpartition("@")[2]


def _library() -> Any:
    try:
        import redis  # here: only this store needs it
    except ImportError:
        raise ConfigError(
            "parallel.rendezvous: a Redis address needs the redis library: pip install 'holdfast[redis]'"
        ) from None
    return redis


def _connected(redis: Any, url: str) -> Any:
    """A client that has been answered once; retried for a while, since a thousand ranks connect at one moment."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=_CONNECT_S, socket_keepalive=True, retry=Retry(NoBackoff(), 0)
        )
    except ValueError as error:
        raise ConfigError(f"parallel.rendezvous {shown(url)}: {error}") from None
    end, pause = time.monotonic() + _CONNECT_S, 0.02
    while True:
        try:
            client.ping()
            return client
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            refused = isinstance(error, redis.AuthenticationError)
            if refused or time.monotonic() > end:
                raise ConfigError(f"parallel.rendezvous {shown(url)}: {error}") from None
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        except redis.RedisError as error:
            raise ConfigError(f"parallel.rendezvous {shown(url)}: {error}") from None
