"""The documentation is correct: generated parts are fresh, links resolve, commands exist, examples run."""

import functools
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.agent.logs import rules as log_rules
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load
from holdfast.controller.detectors.base import table as detector_table
from holdfast.facts.faults import parse_fault
from holdfast.wire.types import FindingKind
from tests.all_rows import all_rows
from tests.command_tree import command_tree

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r'\]\((?P<to>[^)\s]+)\)|(?:src|srcset)="(?P<file>[^"]+)"')
FOLDERS = "agent|benchmarks|checkpoint|controller|dashboards|deploy|diagnostics|docs|holdfast|proto|tests|trainer"
OURS = re.compile(rf"`(?P<path>(?:{FOLDERS})/[\w/.*-]+\.(?:py|toml|proto|yml))`")
TO_BE_WRITTEN = {
    "controller/detectors/heat.py",
    "diagnostics/checks/my_test.py",
    "trainer/optim/NAME.py",
    "holdfast/plan/schedules/NAME.py",
}
"""Files that a how-to has its reader make."""


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.techniques_table.measured = lambda: all_rows()[1]
    return module


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [match["text"] for match in BLOCK.finditer(page.read_text()) if match["language"] in languages]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_generated_parts_are_fresh(page: Path, generate: ModuleType) -> None:
    assert generate.rendered(page) == page.read_text(), "run `make docs`"


def test_the_picture_of_a_schedule_is_fresh(generate: ModuleType) -> None:
    made = generate.schedule_choice
    assert made.picture() == made.PICTURE.read_text(), "run `make docs`"


def test_every_finding_has_an_entry_in_the_runbook() -> None:
    entries = re.findall(r"^### (\S+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert entries == [str(kind) for kind in FindingKind]


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that a renderer makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        to = match["to"] or match["file"]
        if "://" in to:
            continue
        path, _, anchor = to.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{named(page)}: {to}"
        assert not anchor or anchor in anchors(target), f"{named(page)}: {to}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in {match["path"] for match in OURS.finditer(page.read_text())} - TO_BE_WRITTEN:
        assert list(ROOT.glob(path)), f"{named(page)}: {path}"


def commands(page: Path) -> list[list[str]]:
    """The lines of the shell blocks, as words."""
    typed = [line.removeprefix("$ ") for line in "\n".join(blocks(page, "console")).splitlines()]
    text = "\n".join([*blocks(page, "sh"), *typed]).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def test_every_command_has_an_example() -> None:
    typed = [words[1:] for page in PAGES for words in commands(page) if words[0] == "holdfast"]
    shown = {tuple(words[:count]) for words in typed for count in (1, 2)}
    for name, command in command_tree().commands.items():
        for path in [(name, part) for part in getattr(command, "commands", {})] or [(name,)]:
            assert path in shown, " ".join(path)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path) -> None:
    known = command_tree().commands
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands(page):
        if words[0] == "make":
            assert words[1] in targets, words
            if len(words) > 2 and words[2].startswith("DEMO_ARGS="):
                check_options(known["demo"], words[2].partition("=")[2].split())
        elif words[0] == "holdfast":
            assert words[1] in known, words
            command, rest = known[words[1]], words[2:]
            if rest and rest[0] in getattr(command, "commands", {}):
                command, rest = command.commands[rest[0]], rest[1:]
            if words[1] == "run":  # what follows the script is the script's
                rest = rest[: next(i for i, word in enumerate(rest) if word.endswith(".py") or word == "-m")]
            if words[1] not in ("train", "memory", "plan", "profile"):  # which take the trainer's options
                check_options(command, rest)


SPOKEN = re.compile(r"`holdfast ([^`]+)`|`(--[a-z-]+)[^`]*`")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_in_sentences_exist(page: Path) -> None:
    """The commands and options named in the text parse."""
    known = command_tree().commands
    every = {name for command in _all(known) for parameter in command.params for name in parameter.opts}
    every |= {name for command in _all(known) for p in command.params for name in p.secondary_opts} | {"--help"}
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for typed, option in SPOKEN.findall(text):
        words = typed.split()
        if words and words[0] in known:
            command = known[words[0]]
            if len(words) > 1 and hasattr(command, "commands") and words[1].isalpha() and words[1].islower():
                assert words[1] in command.commands, f"{named(page)}: holdfast {typed}"
                command = command.commands[words[1]]
        elif words:
            assert words[0].startswith(("-", "(")), f"{named(page)}: holdfast {typed}"
        if option and page.name in ("runbook.md", "pauses.md", "alerts.md"):
            assert option in every, f"{named(page)}: {option}"


def _all(commands: dict[str, Any]) -> Iterator[Any]:
    for command in commands.values():
        yield command
        yield from _all(getattr(command, "commands", {}))


def check_options(command: object, words: list[str]) -> None:
    options = {name for parameter in command.params for name in parameter.opts}  # type: ignore[attr-defined]
    for word, value in zip(words, [*words[1:], ""], strict=False):
        is_number = word.lstrip("-").isdecimal()
        assert not word.startswith("-") or is_number or word in options, f"{word} of {words}"
        if word == "--fault":
            parse_fault(value)


def test_the_detector_of_the_how_to_works(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, story = blocks(ROOT / "docs" / "howto-detector.md", "python")
    module = ModuleType("heat")
    monkeypatch.setitem(sys.modules, "heat", module)  # dataclasses look their module up
    exec(compile(f"{detector}\n\n{story}", "heat.py", "exec"), module.__dict__)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_the_rule_of_the_how_to_works() -> None:
    (row,) = blocks(ROOT / "docs" / "howto-log-rule.md", "toml")
    (rule,) = log_rules.parse(row, "rules.toml")
    assert rule.matches(rule.sample)


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert picture.stat().st_size < 400_000, picture.name


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not {name for name in pages if f"]({name}" not in index}


def test_the_readme_is_in_the_order_of_a_new_readers_questions() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert headings[:6] == [
        "Install", "Two commands", "Your own script", "What it has and has not been run on", "Figures",
        "Compared with other systems",
    ]  # fmt: skip


def test_the_limits_of_the_how_to_load(tmp_path: Path) -> None:
    [text] = blocks(ROOT / "docs" / "howto-alerts.md", "toml")
    (tmp_path / "holdfast.toml").write_text(text)
    loaded = load(ControllerConfig, {}, file=tmp_path / "holdfast.toml")
    tuning = detector_table.Tuning(loaded.detectors)  # refuses what does not exist
    assert tuning.response(FindingKind.STRAGGLER) == detector_table.Response.OFF


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_alert_of_the_how_to_is_a_rule(tmp_path: Path) -> None:
    [text] = blocks(ROOT / "docs" / "howto-alerts.md", "yaml")
    (tmp_path / "own-rules.yml").write_text(text)
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "own-rules.yml")], check=True, timeout=60)
    metrics = set(re.findall(r"holdfast_\w+", text))
    assert metrics
    assert not [name for name in metrics if f"`{name}`" not in (ROOT / "docs" / "operations.md").read_text()]
