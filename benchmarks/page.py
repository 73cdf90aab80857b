"""The page in Chromium: how soon it paints, how much of each frame its scripts take while a job runs, and how many
bytes a second its tab receives.

    python benchmarks/page.py [--meshes 2x2x2 8x192x8] [--seconds 4] [--loads 5] [--bytes-seconds 20] [--json]

Each mesh (pp x dp x tp) is served by a process of its own: the real HTTP side around a made-up job that moves on ten
times a second, with one slow rank. Chromium's own tracing says what the main thread did between two frames; time is
the thread's own, so that what else runs on the machine does not count, except for the first paint. Bytes are those that
the server sends, heads included, from five seconds after a view was opened; `hidden` is a tab behind another one.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from playwright.sync_api import Browser, Page, sync_playwright
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks import common
from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from tests.browser import ARGS, CHROMIUM
from tests.controller.support.fake_facade import FakeFacade

Json = dict[str, Any]
KEYS = {
    "overview": ("mesh-canvas", ["+", "ArrowRight", "-", "0"]),
    "overview?mesh=3d": ("mesh3d", ["d", "w", "+", "a", "-", "0"]),
    "incidents": ("", []),
    "slow": ("heat", ["n", "+", "ArrowRight", "-", "0"]),
    "slow?from=newest": ("timeline", ["ArrowRight", "+", "d", "-", "0"]),
    "nodes": ("", []),
    "run": ("", []),
    "logs": ("", []),
}
"""What is focused in each view, and the keys that are pressed there while it is watched."""
SCRIPT = frozenset(
    {"FunctionCall", "EvaluateScript", "v8.compile", "v8.compileModule", "v8.evaluateModule", "FireAnimationFrame",
     "TimerFire", "EventDispatch", "RunMicrotasks", "v8.callFunction", "MajorGC", "MinorGC"}
)  # fmt: skip
CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline", "v8", "toplevel"]


@dataclass
class Frames:
    """Milliseconds of the main thread in each frame in which it did something."""

    script: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


class Counting:
    """An ASGI application that adds up what it sends."""

    def __init__(self, app: ASGIApp, sent: "Synchronized[float]") -> None:
        self._app, self._sent = app, sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            size = len(message.get("body", b"")) + sum(len(k) + len(v) + 4 for k, v in message.get("headers", ()))
            with self._sent.get_lock():
                self._sent.value += size
            await send(message)

        await self._app(scope, receive, counted)


def serve(sizes: tuple[int, int, int], out: Connection, sent: "Synchronized[float]") -> None:
    """Serve a made-up job until killed; says its port first."""
    pp, dp, tp = sizes
    facade = FakeFacade(pp=pp, dp=dp, tp=tp, per_node=8 if pp * dp * tp > 64 else 4)
    facade.warm_up(300)
    app = create_app(facade, Auth())
    app.add_middleware(Counting, sent=sent)

    async def run() -> None:
        async with serving(app, port=0) as port:
            out.send(port)
            await facade.live(0.1)

    asyncio.run(run())


@contextmanager
def served(sizes: tuple[int, int, int]) -> Iterator[tuple[str, "Synchronized[float]"]]:
    """The address, and the bytes sent so far."""
    ours, theirs = multiprocessing.Pipe()
    spawning = multiprocessing.get_context("spawn")
    sent = spawning.Value("d", 0.0)
    process = spawning.Process(target=serve, args=(sizes, theirs, sent), daemon=True)
    process.start()
    try:
        if not ours.poll(60):
            raise SystemExit("the made-up controller did not come up within a minute")
        yield f"http://127.0.0.1:{ours.recv()}/", sent
    finally:
        process.kill()
        process.join()


def shown(page: Page) -> None:
    """Wait until the ranks are there. (Not by a function in the page: its policy allows no script from strings.)"""
    page.locator("#mesh-shape", has_text="ranks").wait_for(state="attached")


def first_paint(browser: Browser, url: str, loads: int) -> list[float]:
    """Milliseconds from navigation to the first contentful paint, with a cold cache each time."""
    found = []
    for _ in range(loads):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(url)
        shown(page)
        found.append(float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")))
        context.close()
    return found


def watch(browser: Browser, page: Page, url: str, view: str, seconds: float) -> Frames:
    """What the main thread did while a view was live and its keys were pressed."""
    page.goto(f"{url}#/{view}")
    page.locator(f"body[data-view={view.partition('?')[0]}]").wait_for()
    page.wait_for_timeout(1500)  # what a view asks for once has come, and the rest repeats
    canvas, keys = KEYS[view]
    browser.start_tracing(page=page, categories=CATEGORIES)
    if canvas:
        page.locator(f"#{canvas}").focus()
    pause = seconds * 1000 / max(1, 3 * len(keys))
    for key in keys * 3:
        page.keyboard.press(key)
        page.wait_for_timeout(pause)
    if not keys:
        page.wait_for_timeout(seconds * 1000)
    return frames(browser.stop_tracing())


def received(page: Page, url: str, view: str, sent: "Synchronized[float]", seconds: float) -> float:
    """Bytes a second while a view is open and nobody touches it."""
    page.goto(f"{url}#/{view}")
    page.locator(f"body[data-view={view.partition('?')[0]}]").wait_for()
    return rate(page, sent, seconds)


def rate(page: Page, sent: "Synchronized[float]", seconds: float) -> float:
    page.wait_for_timeout(5000)  # what is asked for once has come
    before = sent.value
    page.wait_for_timeout(seconds * 1000)
    return (sent.value - before) / seconds


def hidden(page: Page, url: str, sent: "Synchronized[float]", seconds: float) -> float:
    """The same of a tab that another one covers."""
    page.goto(f"{url}#/overview")
    page.locator("body[data-view=overview]").wait_for()
    # A headless browser covers no tab: what the page sees of it is set.
    page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    return rate(page, sent, seconds)


def frames(trace: bytes) -> Frames:
    """Main-thread time by frame, out of a trace. Events within others count once."""
    events = json.loads(trace)["traceEvents"]
    mains = {(e["pid"], e["tid"]) for e in events if e.get("args", {}).get("name") == "CrRendererMain"}
    mine = [e for e in events if (e["pid"], e["tid"]) in mains and "ts" in e]
    # Several renderers may live; the page's is the one that ran scripts most.
    spent: dict[Any, float] = {}
    for e in mine:
        if e["name"] in SCRIPT:
            spent[e["pid"], e["tid"]] = spent.get((e["pid"], e["tid"]), 0.0) + e.get("dur", 0)
    if not spent:
        return Frames()
    thread = max(spent, key=lambda key: spent[key])
    mine = sorted((e for e in mine if (e["pid"], e["tid"]) == thread), key=lambda e: (e["ts"], -e.get("dur", 0)))
    edges = [e["ts"] for e in mine if e["name"] == "Commit"]  # what is drawn is handed over
    script = outermost([e for e in mine if e["name"] in SCRIPT])
    busy = outermost([e for e in mine if e["name"].endswith("RunTask")])
    return Frames(by_frame(script, edges), by_frame(busy, edges))


def outermost(events: list[Json]) -> list[tuple[float, float]]:
    """(when, thread microseconds) of the complete events that lie in no other of them."""
    found: list[tuple[float, float]] = []
    end = -1.0
    for e in events:
        if e["ph"] == "X" and e["ts"] >= end:
            end = e["ts"] + e.get("dur", 0)
            found.append((e["ts"], e.get("tdur", e.get("dur", 0))))
    return found


def by_frame(events: list[tuple[float, float]], edges: list[float]) -> list[float]:
    """Milliseconds between two edges each, where there were any."""
    sums: dict[int, float] = {}
    k = 0
    for at, took in events:
        while k < len(edges) and edges[k] <= at:
            k += 1
        sums[k] = sums.get(k, 0.0) + took / 1000
    return list(sums.values())


def measure(browser: Browser, sizes: tuple[int, int, int], seconds: float, loads: int, quiet: float) -> Json:
    with served(sizes) as (url, sent):
        paints = first_paint(browser, url, loads)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        shown(page)
        views = {view: watch(browser, page, url, view, seconds) for view in KEYS}
        bytes_ = {view: received(page, url, view, sent, quiet) for view in KEYS} if quiet else {}
        bytes_ |= {"hidden": hidden(page, url, sent, quiet)} if quiet else {}
        context.close()
    return {
        "ranks": sizes[0] * sizes[1] * sizes[2],
        "first_paint_ms": statistics.median(paints),
        "first_paint_most_ms": max(paints),
        "views": {
            view: {
                "frames": len(f.script),
                "script_ms": statistics.median(f.script) if f.script else 0.0,
                "script_p99_ms": common.quantile(f.script, 0.99) if f.script else 0.0,
                "script_most_ms": max(f.script, default=0.0),
                "busy_most_ms": max(f.busy, default=0.0),
            }
            for view, f in views.items()
        },
        "bytes_per_s": bytes_,
        "complaints": complaints,
    }


def mesh(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no mesh; write PPxDPxTP, as 8x192x8")
    return int(match[1]), int(match[2]), int(match[3])


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--meshes", nargs="+", type=mesh, default=[(2, 2, 2), (8, 192, 8)])
    parser.add_argument("--seconds", type=float, default=4.0, help="that each view is watched")
    parser.add_argument("--loads", type=int, default=5, help="of the page, for the first paint")
    parser.add_argument("--bytes-seconds", type=float, default=20.0, help="that the bytes of each view are counted")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS)
        found = [
            measure(browser, sizes, options.seconds, options.loads, options.bytes_seconds) for sizes in options.meshes
        ]
        browser.close()
    rows = [
        (one["ranks"], view, f["frames"], f["script_ms"], f["script_p99_ms"], f["script_most_ms"], f["busy_most_ms"])
        for one in found
        for view, f in one["views"].items()
    ]
    worst = {str(one["ranks"]): max(f["script_most_ms"] for f in one["views"].values()) for one in found}
    result = {
        "medians_ms": {f"first paint, {one['ranks']} ranks": one["first_paint_ms"] for one in found},
        "script_most_ms": worst,
        "bytes_per_s": {str(one["ranks"]): max(one["bytes_per_s"].values(), default=0.0) for one in found},
        "meshes": found,
    }
    if not options.json:
        for one in found:
            paint = f"first paint {one['first_paint_ms']:.0f} ms (most {one['first_paint_most_ms']:.0f})"
            print(f"{one['ranks']} ranks: {paint}, console: {one['complaints'] or 'nothing'}")
            print("  kB/s: " + ", ".join(f"{view} {many / 1000:.1f}" for view, many in one["bytes_per_s"].items()))
    head = ("ranks", "view", "frames", "script ms", "p99", "most", "main thread most")
    common.finish(result, options.json, head, rows)


if __name__ == "__main__":
    main()
