"""What can go wrong with a checkpoint.

CheckpointError (a HoldfastError)
├── StoreUnsupported      the URL names a store that this build cannot open
├── StoreMissing          the folder of a store does not exist
├── ManifestInvalid       a manifest that is torn, altered or of another version
├── PartInvalid           a part that is missing, truncated or altered
├── CheckpointMismatch    a sound checkpoint, of another model, mesh or data order
├── StaleGeneration       a newer generation owns the store: this one must stop
├── SnapshotInvalid       a file in shared memory that holds no snapshots of this version
└── SnapshotRefused       no memory for snapshots, with the figures
"""

from __future__ import annotations

from holdfast.base.errors import HoldfastError, UsageError


class CheckpointError(HoldfastError):
    """Any failure to write, list or read a checkpoint."""


class StoreUnsupported(CheckpointError, UsageError):
    """The URL names a store that this build cannot open."""


class StoreMissing(CheckpointError, UsageError):
    """The folder of a store does not exist."""


class ManifestInvalid(CheckpointError):
    """A manifest that is torn, altered or of another version."""


class PartInvalid(CheckpointError):
    """A part that is missing, truncated or altered."""


class CheckpointMismatch(CheckpointError, UsageError):
    """A sound checkpoint that belongs to another model, mesh or data order."""


class StaleGeneration(CheckpointError):
    """A newer generation owns the store: this one must stop."""


class SnapshotInvalid(CheckpointError):
    """A file in shared memory that holds no snapshots of this version."""


class SnapshotRefused(CheckpointError):
    """No memory for snapshots, with the figures."""
