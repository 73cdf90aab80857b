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

from holdfast.base.errors import Conflict, HoldfastError, NotFound, Unavailable, UsageError
from holdfast.base.json_text import encode
from holdfast.controller.http.models import Problem

log = logging.getLogger(__name__)

MEANING = {
    "400": "The request is invalid.",
    "401": "The API token is missing or wrong.",
    "403": "The token may only read, or a page of another site sent the request.",
    "404": "Not found.",
    "408": "The body did not arrive in time.",
    "409": "Not possible in the present state.",
    "413": "The body is too long.",
    "500": "A bug; the controller's log has the traceback.",
    "503": "An agent does not answer; try again later.",
}
_OF_SPANS = ("/blame", "/blame/heat", "/spans", "/spans/predicted", "/timeline")

_STATUS = {NotFound: 404, Conflict: 409, UsageError: 400, Unavailable: 503}
"""By the first class that fits."""


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
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
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
    is_secret = "env" in path  # a value of the environment may be a credential
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) and not is_secret else ""
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
    found = ["403", "500"]
    if operation.get("parameters") or "requestBody" in operation:
        found.append("400")
    if operation.get("security"):
        found.append("401")
    if "{" in path or path.endswith((*_OF_SPANS, "/events", "/diagnose", "/notify/test")):
        found.append("404")
    if method == "post":
        found += ["408", "409", "413", "503"]
    elif path.endswith((*_OF_SPANS, "/logs", "/logs/same", "/day", "/then")):
        found.append("409")
    return sorted(found)
