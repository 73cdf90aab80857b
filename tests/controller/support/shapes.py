"""What `/openapi.json` says that each route answers, and whether an answer is that: no field less, none more."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

from holdfast.controller.http import diagnose, jobs, models, spans, streams
from holdfast.controller.http import routes as http_routes
from holdfast.controller.http.notifications import routes as notification_routes
from holdfast.controller.http.past import days

MODELS = {
    name: one
    for module in (models, jobs, diagnose, spans, days, streams, http_routes, notification_routes)
    for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, BaseModel)
}  # fmt: skip


class Route(NamedTuple):
    method: str
    path: str
    shape: Any
    """None: not JSON."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def routes(app: FastAPI) -> list[Route]:
    found = []
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            code = next(code for code in ("200", "201") if code in operation["responses"])
            content = operation["responses"][code]["content"].get("application/json")
            found.append(
                Route(method.upper(), path, _shape(content["schema"]) if content and content["schema"] else None)
            )
    return found


def _shape(schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return MODELS[schema["$ref"].rpartition("/")[2]]
    if schema.get("type") == "array":
        return list[_shape(schema["items"])]  # type: ignore[misc]
    if "anyOf" in schema:
        return reduce(or_, (None if one.get("type") == "null" else _shape(one) for one in schema["anyOf"]))
    return dict[str, Any]


def hold(shape: Any, answer: bytes | str | Any) -> None:
    """ValidationError or AssertionError where it is not what the shape says."""
    adapter = TypeAdapter(shape)
    value = adapter.validate_json(answer) if isinstance(answer, bytes | str) else adapter.validate_python(answer)
    if more := list(undeclared(value)):
        raise AssertionError(f"no model has these fields: {', '.join(more)}")


def undeclared(value: Any, where: str = "") -> Iterator[str]:
    """Fields that no model names."""
    if isinstance(value, BaseModel):
        yield from (f"{where}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from undeclared(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for n, one in enumerate(value):
            yield from undeclared(one, f"{where}[{n}]")
