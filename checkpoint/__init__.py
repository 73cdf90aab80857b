"""Checkpoints: layout, stores, commit and restore."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer import Checkpointer as Checkpointer

__all__ = ["Checkpointer"]


def __getattr__(name: str) -> Any:
    # Late: it needs torch, which a process that only reads a store does not have.
    if name == "Checkpointer":
        from holdfast.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
