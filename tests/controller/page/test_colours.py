"""The page's colours: contrast as WCAG 2.2 has it (1.4.3, 1.4.11), and lightness that every kind of colour vision sees.

Dichromacy is simulated with the matrices of Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
"""

import itertools
import re
from pathlib import Path

import pytest

CSS = Path(__file__).parents[3] / "controller" / "page" / "style.css"
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
Colour = tuple[float, ...]

TEXT, GRAPHIC = 4.5, 3.0
APART = 5.0
"""Least difference of lightness (CIE L*) between two meanings."""
TEXTS = ("text", "muted", "faint", "accent", "ok", "busy", "wait", "warn", "bad")
BEHIND = {"ok": "ok-soft", "warn": "warn-soft", "wait": "warn-soft", "bad": "bad-soft", "busy": "busy-soft"}
"""What stands behind a word or a sign of that meaning, besides the plain surfaces."""
GRAPHICS = (
    "ok-cell", "busy-cell", "wait-cell", "warn", "bad", "idle", "fast", "slow", "slowest", "curve", "curve-2", "send",
    "receive",
)  # fmt: skip
"""Not `mid`: the middle of the scale of step times is meant to be pale. What is slow or fast is not."""
MEANINGS = ("ok-cell", "idle", "wait-cell", "warn", "bad")
"""From what needs nobody on: ok, ended along with the job, wait, warn, bad."""


def palette(theme: str) -> dict[str, Colour]:
    text = CSS.read_text()
    light = re.search(r":root \{(.*?)\n\}", text, re.DOTALL)
    dark = re.search(r':root\[data-theme="dark"\] \{(.*?)\n\}', text, re.DOTALL)
    assert light is not None
    assert dark is not None
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", light[1] + (dark[1] if theme == "dark" else ""))
    return {name: linear(value) for name, value in found}


def linear(value: str) -> Colour:
    digits = value.lstrip("#")
    whole = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(whole[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def luminance(colour: Colour) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def contrast(one: Colour, other: Colour) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lightness(colour: Colour, vision: tuple[Colour, ...]) -> float:
    """L* of what an eye of that kind sees."""
    seen = tuple(
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True)))) for row in vision
    )  # outside of sRGB: the nearest inside
    y = luminance(seen)
    return 116 * y ** (1 / 3) - 16 if y > 216 / 24389 else y * 24389 / 27


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast(linear("#000"), linear("#fff")) == pytest.approx(21.0)
    assert contrast(linear("#767676"), linear("#ffffff")) == pytest.approx(4.54, abs=0.01)
    assert lightness(linear("#777777"), DEUTERANOPIA) == pytest.approx(50.0, abs=0.3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    colours = palette(theme)
    for name in TEXTS:
        for behind in ("surface", "sunken", "bg", *([BEHIND[name]] if name in BEHIND else [])):
            found = contrast(colours[name], colours[behind])
            assert found >= TEXT, f"{theme}: {name} on {behind} has {found:.2f}:1"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_graphics_can_be_seen(theme: str) -> None:
    colours = palette(theme)
    for name in GRAPHICS:
        found = contrast(colours[name], colours["surface"])
        assert found >= GRAPHIC, f"{theme}: {name} has {found:.2f}:1"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
def test_the_worse_the_stronger(theme: str, vision: tuple[Colour, ...]) -> None:
    """Each meaning stands out more than the one before, from the surface away, to every kind of eye."""
    colours = palette(theme)
    surface = lightness(colours["surface"], vision)
    distances = [abs(lightness(colours[name], vision) - surface) for name in MEANINGS]
    for (less, more), names in zip(itertools.pairwise(distances), itertools.pairwise(MEANINGS), strict=True):
        assert more - less >= APART, f"{theme}: {names} differ by {more - less:.1f}"
