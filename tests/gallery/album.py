"""The gallery as one page of HTML, and as docs/gallery.md: `make gallery`."""

import html
import json
import shutil
import sys
from pathlib import Path

from tests.gallery.situations import SITUATIONS, Situation

INTRO = """# The gallery

Thirteen situations, each as every surface shows it: made by `make gallery`, which also checks that all of them say the
same. Under each stands what a person who looks for ten seconds must know.
"""


def folder_of(album: Path, situation: Situation) -> Path:
    return album / "".join(c for c in situation.name.replace(" ", "-") if c.isalnum() or c == "-")


def answer(situation: Situation) -> str:
    return " ".join(part for part in (situation.well, situation.who, f"To do: {situation.todo}") if part)


def texts(folder: Path) -> dict[str, str]:
    return {one.stem: one.read_text().rstrip() for one in sorted(folder.glob("*.txt"))}


def markdown(album: Path, pictures: Path) -> str:
    """Pictures go to `pictures`, beside the page."""
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)
    parts = [INTRO]
    for situation in SITUATIONS:
        folder = folder_of(album, situation)
        shown = texts(folder)
        parts.append(f"## {situation.name[0].upper()}{situation.name[1:]}\n\n**{answer(situation)}**\n")
        shutil.copy(folder / "small.jpg", pictures / f"{folder.name}.jpg")
        parts.append(f"![{situation.name}: the page](images/gallery/{folder.name}.jpg)\n")
        parts.append(f"```text\n{shown['terminal-80']}\n```\n")
        messages = [text for name, text in shown.items() if name.startswith("message-")]
        for text in messages:
            parts.append(f"Message:\n\n```text\n{text}\n```\n")
        parts.append(f"{'' if messages else 'No message. '}Grafana: *{shown['board']}*.\n")
    return "\n".join(parts)


def page(album: Path) -> str:
    cells = []
    for situation in SITUATIONS:
        folder = folder_of(album, situation)
        pictures = "".join(
            f'<a href="{folder.name}/{one.name}"><img src="{folder.name}/{one.name}" alt="{one.stem}"></a>'
            for one in sorted(folder.glob("*.png"))
        )
        shown = "".join(f"<h3>{name}</h3><pre>{html.escape(text)}</pre>" for name, text in texts(folder).items())
        cells.append(
            f"<section><h2>{html.escape(situation.name)}</h2><p><b>{html.escape(answer(situation))}</b></p>"
            f"<div>{pictures}</div><details><summary>texts</summary>{shown}</details></section>"
        )
    style = "body{font:14px sans-serif;margin:2em}img{height:300px;border:1px solid #ccc;margin:4px}pre{overflow:auto}"
    return f"<!doctype html><meta charset=utf-8><title>Gallery</title><style>{style}</style>{''.join(cells)}"


def main(album: Path, docs: Path) -> None:
    (album / "index.html").write_text(page(album))
    (docs / "gallery.md").write_text(markdown(album, docs / "images" / "gallery"))
    print(json.dumps({"album": str(album / "index.html"), "page": str(docs / "gallery.md")}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
