"""The names that benchmarks of two trees need, wherever the tree has them: modules have moved into rooms in between."""

try:
    from holdfast.base.errors import HoldfastError
    from holdfast.cli.local.cluster import LocalCluster
except ImportError:  # a tree from before
    from holdfast.cli.local_cluster import LocalCluster  # type: ignore[import-not-found,no-redef]
    from holdfast.errors import HoldfastError  # type: ignore[import-not-found,no-redef]

__all__ = ["HoldfastError", "LocalCluster"]
