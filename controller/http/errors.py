"""Every error of the HTTP side as `{"error": "one clear line"}`, in answers and in `/openapi.json`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.json_text import encode
from holdfast.controller.http.models import Problem

log = logging.getLogger(__name__)

MEANING = {
    "400": "The request is invalid.",
    "401": "The API token is missing or wrong.",
    "403": "The token may only read.",
    "404": "Not found.",
    "409": "Not possible in the present state.",
}


def install(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(Exception, _bug)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    line = " ".join(text.split())
    return Response(encode({"error": line}), status, headers, media_type="application/json")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail
    if text == "Not Found":
        text = f"no path {request.url.path}; GET /openapi.json lists all paths"
    elif text == "Method Not Allowed":
        text = f"{request.url.path} does not answer to {request.method}"
    return problem(error.status_code, text, error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem(400, "; ".join(one_line(each) for each in error.errors()[:3]))


async def _ours(_: Request, error: Exception) -> Response:
    status = 400 if isinstance(error, UsageError) else 503 if isinstance(error, Unavailable) else 500
    return problem(status, str(error))


async def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "internal error; the controller's log has the traceback")


def one_line(error: Mapping[str, Any]) -> str:
    """What pydantic found, as where, what and what would be right."""
    place, *path = error["loc"]
    where = ".".join(str(part) for part in path) or "the body"
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', '')}"
    if error["type"] == "missing":
        return f"{where} is missing from the {place}"
    if error["type"] == "extra_forbidden":
        return f"{where} is not a field of the {place}"
    text = str(error["msg"])
    given = error.get("input")
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
    if text.startswith("Input should "):
        return f"{where} should {text.removeprefix('Input should ')}{shown}"
    return f"{where}: {text[:1].lower()}{text[1:]}{shown}"


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's schema with the API's one error shape in place of its own."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = schema["components"]["schemas"]
        for gone in ("HTTPValidationError", "ValidationError"):
            schemas.pop(gone, None)
        schemas["Problem"] = Problem.model_json_schema()
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                answers = operation["responses"]
                answers.pop("422", None)
                for status in _statuses(path, method, operation):
                    answers[status] = {"description": MEANING[status], "content": content}
        app.openapi_schema = schema
    return app.openapi_schema


def _statuses(path: str, method: str, operation: Mapping[str, Any]) -> Sequence[str]:
    found = []
    if operation.get("parameters") or "requestBody" in operation:
        found.append("400")
    if operation.get("security"):
        found.append("401")
    if method == "post":
        found.append("403")
    if "{" in path or path.endswith("/logs"):
        found.append("404")
    if path.endswith(("/stop", "/restart", "/stacks", "/checkpoint", "/inject")):
        found.append("409")
    return found
