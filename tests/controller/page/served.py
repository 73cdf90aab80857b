"""The page behind a real server, in a browser."""

import asyncio
import threading
import time
from collections.abc import Callable

import psutil
from playwright.sync_api import Page, expect

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from tests.browser import Watched
from tests.controller.support.fake_facade import FakeFacade


class Served:
    """A controller with a page, in a thread of its own. `do` changes its state between two events of its loop."""

    def __init__(self, facade: FakeFacade, auth: Auth, port: int = 0, live: bool = True) -> None:
        self.facade, self.auth, self.port, self.live = facade, auth, port, live
        self.pages: list[Page] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(create_app(self.facade, self.auth), port=self.port) as self.port:
            ticking = asyncio.create_task(self.facade.live(0.1)) if self.live else None
            self._ready.set()
            await self._stop.wait()
            if ticking is not None:
                ticking.cancel()

    def do(self, *changes: Callable[[], object]) -> None:
        """Changes of its state, between two events of its loop; all are done when this returns."""
        done = threading.Event()
        for change in (*changes, done.set):
            self._loop.call_soon_threadsafe(change)
        assert done.wait(30)

    def fault(self, rank: int) -> None:
        self.do(lambda: self.facade.fault(rank))

    def tick(self, times: int) -> None:
        """Two seconds pass so many times; each ends the phase of an incident. For one that is not live."""
        self.do(*[lambda: self.facade.tick(2.0)] * times)

    def end(self) -> None:
        """Close what was opened of it before stopping: a page that still asks would complain."""
        for page in self.pages:
            page.close()
        if self.pages:  # until the server has seen it
            deadline = time.monotonic() + 30.0
            while self._connected():
                assert time.monotonic() < deadline, "a page that was closed is still connected"
                time.sleep(0.01)
        self.stop()

    def _connected(self) -> bool:
        return any(one.laddr.port == self.port and one.raddr for one in psutil.Process().net_connections("tcp"))

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def open_page(watched: Watched, served: Served, hash_: str = "") -> Page:
    page = watched.page
    served.pages.append(page)
    page.goto(served.url + hash_)
    expect(page.locator("#job-shape")).to_contain_text("ranks")
    expect(page.locator("#connection")).to_have_text("live")
    return page


# Read from a copy, which may be read often.
_PIXELS = """([name, canvas]) => {
  const drawn = document.getElementById(canvas);
  const copy = Object.assign(document.createElement("canvas"), { width: drawn.width, height: drawn.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  context.fillRect(0, 0, 1, 1);
  const [wanted] = new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer);
  context.clearRect(0, 0, 1, 1);
  context.drawImage(drawn, 0, 0);
  const found = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
  return found.filter((each) => each === wanted).length;
}"""


def pixels_of(page: Page, name: str, canvas: str = "mesh3d") -> int:
    """How many pixels of a canvas (its id) have exactly this colour of the style sheet."""
    return int(page.evaluate(_PIXELS, [name, canvas]))
