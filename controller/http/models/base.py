"""What all shapes have in common. Answers may have more fields than they name; requests may not."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Number = float | None
Instant = float | None
Sizes = Annotated[list[int], Field(min_length=3, max_length=3)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")
