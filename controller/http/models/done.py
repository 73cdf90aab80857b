"""Answers to commands."""

from typing import Literal

from pydantic import BaseModel, Field

from holdfast.controller.http.models.base import Answer


class Problem(BaseModel):
    error: str = Field(description="One line: what is wrong, where, and how to correct it.")


class Submitted(BaseModel):
    id: str = Field(description="The job's id.")


class Done(BaseModel):
    ok: Literal[True] = True


class Injected(Answer):
    id: str
    armed: bool = Field(description="True: the fault waits for its step. False: done.")
