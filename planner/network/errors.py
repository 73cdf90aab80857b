"""What is no network."""

from __future__ import annotations

from holdfast.base.errors import UsageError


class NetworkError(UsageError):
    """A network that can't be: one line that says what is wrong, where, and what would be possible."""
