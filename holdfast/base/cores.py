"""The processor cores that a rank may use."""

import os
from collections.abc import Mapping


def cores_of_rank(environ: Mapping[str, str]) -> int:
    """This process's cores, shared among the ranks of its host (LOCAL_WORLD_SIZE); at least 1."""
    said = environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(said) if said.isdecimal() else 1
    return max(1, len(os.sched_getaffinity(0)) // max(1, ranks))
