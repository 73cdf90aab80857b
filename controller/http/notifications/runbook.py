"""The runbook in a browser: open to everybody, as the page's files. It is text of the documentation."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.responses import Response

RUNBOOK = Path(__file__).parents[2] / "page" / "runbook.html"
"""Written by docs/generate.py."""


def serve_runbook(app: FastAPI) -> None:
    @app.get("/runbook", include_in_schema=False)
    async def runbook() -> Response:
        return FileResponse(RUNBOOK, headers={"Cache-Control": "no-cache"})
