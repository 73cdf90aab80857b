"""Ranks that do operations together."""

from dataclasses import dataclass

from holdfast.wire.rank_sets import compact


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Ranks that do operations together; one object for each. `ident` distinguishes groups of the same ranks; two
    ranks' messages in one direction are a group as well."""

    label: str
    ident: int
    members: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.label} ({compact(self.members)})"
