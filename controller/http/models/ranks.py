"""Ranks and steps as columns over HTTP, and the state of all."""

from pydantic import Field

from holdfast.controller.http.models.base import Answer, Number, Sizes


class Ranks(Answer):
    """Columns: entry i of each belongs to rank[i]."""

    rank: list[int]
    node: list[int] = Field(description="Index into `nodes`.")
    pp: list[int | None]
    dp: list[int | None]
    tp: list[int | None]
    step: list[int | None]
    phase: list[int] = Field(description="Index into `phases`.")
    state: list[int] = Field(description="Index into `states`.")
    step_seconds: list[Number]
    progress_age: list[Number] = Field(description="Seconds since its last step or change of phase.")
    mfu: list[Number]
    part_seconds: dict[str, list[Number]] = Field(description="Time of its last step, by part.")
    memory_bytes: list[Number] = Field(description="Peak memory of the rank: of its GPU, else of the host.")
    operation: list[int] = Field(description="Index into `operations`.")
    nodes: list[str]
    phases: list[str]
    states: list[str]
    operations: list[str]
    sizes: Sizes | None


class Steps(Answer):
    """Columns, oldest first."""

    step: list[int]
    loss: list[Number]
    seconds: list[Number]
    tokens: list[Number]
    at: list[Number]
    generation: list[int]
    mfu: list[Number]
    grad_norm: list[Number] = Field(description="Of all parameters, before clipping.")
