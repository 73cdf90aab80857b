"""Which of the workers' standard streams something applies to, in torchrun's form: "3", or "0:3,1:1" by local rank."""

import re
from dataclasses import dataclass, field

OUT, ERR = 1, 2
NAMES = {OUT: "out", ERR: "err"}
_ALL = re.compile(r"[0-3]")
_BY_RANK = re.compile(r"\d+:[0-3](?:,\d+:[0-3])*")


@dataclass(frozen=True, slots=True)
class StdStreams:
    """OUT, ERR, both or 0. `every`: of all local ranks, where `of` is empty; else a rank that is not there has none."""

    every: int = 0
    of: dict[int, int] = field(default_factory=dict)

    def has(self, local_rank: int, stream: int) -> bool:
        """`stream`: OUT or ERR."""
        return bool(self.at(local_rank) & stream)

    def at(self, local_rank: int) -> int:
        return self.of.get(local_rank, 0) if self.of else self.every

    def joined(self, other: "StdStreams", nproc: int) -> "StdStreams":
        """What is in one of both, for a node of so many workers."""
        if not self.of and not other.of:
            return StdStreams(self.every | other.every)
        return StdStreams(of={rank: self.at(rank) | other.at(rank) for rank in range(nproc)})

    def __bool__(self) -> bool:
        return bool(any(self.of.values()) if self.of else self.every)

    def __str__(self) -> str:
        return ",".join(f"{rank}:{value}" for rank, value in self.of.items()) or str(self.every)


def parse(text: str) -> StdStreams:
    """ValueError for anything else."""
    if _ALL.fullmatch(text):
        return StdStreams(int(text))
    if not _BY_RANK.fullmatch(text):
        raise ValueError(f"must be 0 to 3 (1: standard output, 2: standard error), or RANK:N,RANK:N, not {text!r}")
    return StdStreams(of={int(rank): int(value) for rank, _, value in (one.partition(":") for one in text.split(","))})
