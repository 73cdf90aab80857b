"""A piece of memory in which every byte is counted, by what it is for. Pure.

On a GPU an arena says what may be allocated; where there is none, it stands for the device itself.
"""

from collections import Counter
from collections.abc import Mapping

from holdfast.base.errors import HoldfastError


class ArenaFullError(HoldfastError):
    """More was asked for than an arena has."""


class Arena:
    """`capacity` in bytes; None counts without a limit."""

    def __init__(self, name: str, capacity: int | None = None) -> None:
        self.name = name
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self._used_by: Counter[str] = Counter()
        self._peak_by: Counter[str] = Counter()

    @property
    def free(self) -> float:
        """Bytes that are left; infinite without a limit."""
        return float("inf") if self.capacity is None else self.capacity - self.used

    def take(self, kind: str, size: int) -> None:
        """Counts `size` bytes for `kind`.

        Raises:
            ArenaFullError: They don't fit; nothing is counted then.
        """
        if size < 0:
            raise ValueError(f"an arena counts bytes: {size} is less than none")
        if size > self.free:
            held = ", ".join(f"{name} {used}" for name, used in sorted(self._used_by.items()) if used)
            raise ArenaFullError(
                f"{self.name}: {size} bytes for {kind} do not fit, {self.used} of {self.capacity} are taken"
                f" ({held or 'by nothing'})"
            )
        self.used += size
        self._used_by[kind] += size
        self.peak = max(self.peak, self.used)
        self._peak_by[kind] = max(self._peak_by[kind], self._used_by[kind])

    def release(self, kind: str, size: int) -> None:
        """Gives `size` bytes of `kind` back.

        Raises:
            ValueError: There are fewer of this kind.
        """
        if not 0 <= size <= self._used_by[kind]:
            raise ValueError(f"{self.name}: {size} bytes of {kind} can't be released, {self._used_by[kind]} are taken")
        self.used -= size
        self._used_by[kind] -= size

    @property
    def used_by(self) -> Mapping[str, int]:
        """Bytes now, by kind; kinds that hold none are left out."""
        return {kind: size for kind, size in self._used_by.items() if size}

    @property
    def peak_by(self) -> Mapping[str, int]:
        """The most bytes of each kind. Peaks of different kinds need not be at one time: they don't add up."""
        return dict(self._peak_by)
