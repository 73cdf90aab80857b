"""What an agent reads on its node, one module per source.

A collector is built once, says once whether its source exists (`available`, `absent_reason`), and costs nothing
where it does not. `collect` never raises: what cannot be read is left out of the answer, and what can never be
read (a forbidden register, an unsupported query) is remembered and not asked again.
"""

from typing import Protocol


class Collector(Protocol):
    """A source of plain gauges for `Frame.host`."""

    name: str
    available: bool
    absent_reason: str
    """Why not available: one line, empty where it is."""
    interval: float
    """Seconds between two calls of `collect` that are worth their cost."""

    def collect(self) -> dict[str, float]:
        """The present values by metric name; base units. Never raises."""
        ...
