"""Every situation on every surface: the same words on page, terminal, receiver, boards and API."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from holdfast.controller.health.judge import NOTHING
from tests.browser import chromium, watching
from tests.gallery.album import folder_of
from tests.gallery.situations import BY_NAME, SITUATIONS, Situation
from tests.gallery.surfaces import LOOKS, PATIENCE_S, grafana, page_picture, page_texts, plain, terminal

ALBUM = os.environ.get("HOLDFAST_GALLERY", "")
"""Folder for the pictures and texts; empty: none are made."""
ALIVE = [one for one in SITUATIONS if one.condition]
LEAST_WORDS = 3
NAMES = re.compile(r"rank \d+|node\d+|\w+Error", re.IGNORECASE)
"""Of culprits, in the answer that a person should give."""


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
        job = httpx.get(f"{url}/api/v1/job", timeout=PATIENCE_S).json()
        health = job["health"]
        texts = {f"terminal {columns}": terminal(url, columns, monkeypatch) for columns in (80, 200)}
        texts |= {f"page {look}": text for look, text in page_texts(browser, url, ("light", "dark", "phone")).items()}
        for look in LOOKS:
            if (place := album(situation, f"{look}.{'jpg' if look == 'small' else 'png'}")) is not None:
                page_picture(browser, url, look, place)
        board = grafana(url, job["name"])
    assert health["condition"] == situation.condition
    assert board == situation.condition
    for message in scene.firing:
        texts[f"message {message.key}"] = message.text
    assert bool(scene.firing) == situation.fires, [one.title for one in scene.firing]
    for surface, text in texts.items():
        for part in (health["sentence"], health["doing"], health["action"]):
            assert plain(part) in plain(text), (surface, part, text)
        for word in (*situation.says, *NAMES.findall(situation.who)):
            assert plain(word).lower() in plain(text).lower(), (surface, word)
    assert (situation.todo == "Nothing.") == (health["action"] == NOTHING)
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
    texts = {}
    for look in LOOKS if ALBUM else ("light", "phone"):  # neither colours nor scale change a word
        scene = situation.build(tmp_path / look)
        with watching(browser, *LOOKS[look]) as watched:
            page = watched.page
            with scene.served() as url:
                page.goto(url)
                expect(page.locator("#connection")).to_have_text("live")
            expect(page.locator("#lost")).to_be_visible()
            texts[f"page {look}"] = page.locator("#lost").inner_text()
            if ALBUM:
                page.screenshot(path=str(album(situation, "small.jpg" if look == "small" else f"{look}.png")))
            page.goto("about:blank")
            watched.complaints[:] = [text for text in watched.complaints if "ERR_" not in text]
    for shown in texts.values():
        assert "Controller lost: it does not answer." in plain(shown)
        assert "Training does not depend on it." in plain(shown)
    for columns in (80, 200):
        printed = texts[f"terminal {columns}"] = terminal(url, columns, monkeypatch)
        assert "no controller answers at" in plain(printed)
        assert "training does not depend on it" in plain(printed)
    board = grafana(url, "train")
    assert board == "no data"
    for surface, text in texts.items():
        keep(situation, f"{surface.replace(' ', '-')}.txt", text)
    keep(situation, "board.txt", board)


def test_each_answer_is_short_enough_for_ten_seconds() -> None:
    for one in SITUATIONS:
        words = f"{one.well} {one.who} {one.todo}".split()
        assert LEAST_WORDS <= len(words) <= 25, one.name
