"""What is wrong with a description of a cluster."""

from __future__ import annotations

from holdfast.base.errors import UsageError


class ClusterError(UsageError):
    """A cluster's file or reports lack something or contradict themselves; the text says what would be right."""
