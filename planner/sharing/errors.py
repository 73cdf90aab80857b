"""What can't be shared."""

from __future__ import annotations

from holdfast.base.errors import UsageError


class SharingError(UsageError):
    """Jobs or slots that can't be: one line that says what is wrong, where, and what would be possible."""
