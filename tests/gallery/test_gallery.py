"""Every situation on every surface: the same words on page, terminal, receiver, boards and API."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser import chromium, watching
from tests.gallery.album import folder_of
from tests.gallery.situations import BY_NAME, SITUATIONS, Situation
from tests.gallery.surfaces import grafana, page_of, plain, terminal

ALBUM = os.environ.get("HOLDFAST_GALLERY", "")
"""Folder for the pictures and texts; empty: none are made."""
ALIVE = [one for one in SITUATIONS if one.condition]
LEAST_WORDS = 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def album(situation: Situation, name: str) -> Path | None:
    if not ALBUM:
        return None
    folder = folder_of(Path(ALBUM), situation)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def keep(situation: Situation, name: str, text: str) -> None:
    place = album(situation, name)
    if place is not None:
        place.write_text(text)


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize("name", [one.name for one in ALIVE])
def test_all_surfaces_say_the_same(
    name: str, tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation = BY_NAME[name]
    scene = situation.build(tmp_path)
    with scene.served() as url:
        job = httpx.get(f"{url}/api/v1/job").json()
        health = job["health"]
        texts = {f"terminal {columns}": terminal(url, columns, monkeypatch) for columns in (80, 200)}
        if ALBUM:
            page_of(browser, url, "small", album(situation, "small.jpg"))
        texts |= {
            f"page {look}": page_of(browser, url, look, album(situation, f"{look}.png"))
            for look in ("light", "dark", "phone")
        }
        board = grafana(url, job["name"])
    assert health["condition"] == situation.condition
    assert board == situation.condition
    for message in scene.firing:
        texts[f"message {message.key}"] = message.text
    assert bool(scene.firing) == situation.fires, [one.title for one in scene.firing]
    for surface, text in texts.items():
        for part in (health["sentence"], health["doing"], health["action"]):
            assert plain(part) in plain(text), (surface, part, text)
        for word in situation.says:
            assert plain(word) in plain(text), (surface, word)
    for columns in (80, 200):
        assert max(map(len, texts[f"terminal {columns}"].splitlines())) <= columns
    for surface, text in texts.items():
        keep(situation, f"{surface.replace(' ', '-')}.txt", text)
    keep(situation, "board.txt", board)


@pytest.mark.slow
@pytest.mark.aside
def test_a_lost_controller_is_called_that_on_page_and_terminal(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation = BY_NAME["controller lost"]
    scene = situation.build(tmp_path)
    with watching(browser, scale=0.5) as watched:
        page = watched.page
        with scene.served() as url:
            page.goto(url)
            expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#lost")).to_be_visible()
        expect(page.locator("#connection")).to_have_text("controller lost")
        shown = page.locator("#lost").inner_text()
        if ALBUM:
            for name in ("light.png", "small.jpg"):
                page.screenshot(path=str(album(situation, name)))
        page.goto("about:blank")
        watched.complaints[:] = [text for text in watched.complaints if "ERR_" not in text]
    printed = terminal(url, 80, monkeypatch)
    assert "Controller lost: it does not answer." in plain(shown)
    assert "Training does not depend on it." in plain(shown)
    assert "no controller answers at" in plain(printed)
    assert "training does not depend on it" in plain(printed)
    keep(situation, "page-light.txt", shown)
    keep(situation, "terminal-80.txt", printed)
    keep(situation, "board.txt", "no data")


def test_each_answer_is_short_enough_for_ten_seconds() -> None:
    for one in SITUATIONS:
        words = f"{one.well} {one.who} {one.todo}".split()
        assert LEAST_WORDS <= len(words) <= 25, one.name
