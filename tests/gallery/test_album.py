"""docs/gallery.md is of the situations that there are: its texts come from a run of `make gallery`."""

from pathlib import Path

from tests.gallery.album import answer, folder_of
from tests.gallery.situations import SITUATIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_each_situation_with_its_answer_picture_and_words() -> None:
    text = (DOCS / "gallery.md").read_text()
    headings = [line[3:].lower() for line in text.splitlines() if line.startswith("## ")]
    assert headings == [one.name.lower() for one in SITUATIONS], "run `make gallery`"
    sections = text.split("\n## ")[1:]
    for situation, section in zip(SITUATIONS, sections, strict=True):
        assert answer(situation) in section, f"{situation.name}: run `make gallery`"
        assert situation.condition in section
        joined = " ".join(section.replace("`", "").split())
        for word in situation.says:
            assert word.replace("`", "") in joined, f"{situation.name}: run `make gallery`"
        picture = DOCS / "images" / "gallery" / f"{folder_of(Path(), situation).name}.jpg"
        assert picture.stat().st_size < 50_000
