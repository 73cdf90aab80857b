"""Extras: errors that advise an install name one that exists and brings what is missing; the metadata is true."""

import ast
import importlib.metadata
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.common.extras import require
from holdfast.cli.main import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOLDERS = ("agent", "checkpoint", "controller", "dashboards", "deploy", "diagnostics", "docs", "trainer", ".ci")
TEXTS = {".py", ".md", ".sh", ".yml", ".yaml", ".sbatch", ".js", ""}
NAMED = re.compile(r"(?:holdfast|\.whl\)?|\$\{?wheel\}?)\"?\[([a-z0-9,]+)\]")


def files() -> Iterator[Path]:
    for name in FOLDERS:
        yield from (path for path in (ROOT / name).rglob("*") if path.is_file() and path.suffix in TEXTS)
    for name in ("base", "cli", "facts", "plan", "wire"):
        yield from (ROOT / "holdfast" / name).rglob("*.py")
    yield from ROOT.glob("*.md")
    yield from (ROOT / "benchmarks").glob("*.py")


def test_every_extra_that_a_text_names_exists() -> None:
    named = {
        (extra, str(path.relative_to(ROOT)))
        for path in files()
        for match in NAMED.finditer(path.read_text(errors="replace"))
        for extra in match[1].split(",")
    }
    assert {extra for extra, _ in named} >= {"hdfs", "kubernetes", "redis", "spans", "node", "controller"}
    assert not [(extra, path) for extra, path in named if extra not in EXTRAS]


def calls(function: str) -> Iterator[tuple[Path, list[str]]]:
    """The texts that are given to a function of this name, wherever it is called."""
    for path in (ROOT / "holdfast" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                yield path, [arg.value for arg in node.args if isinstance(arg, ast.Constant)]


def brought(extras: str) -> set[str]:
    """Names of the distributions that these extras install, in lower case; those of extras that they name too."""
    found: set[str] = set()
    for extra in extras.split(","):
        for text in EXTRAS[extra]:
            inner = re.fullmatch(r"holdfast\[([\w,]+)\]", text)
            found |= brought(inner[1]) if inner else {re.split(r"[<>=!~ ;]", text)[0].lower()}
    return found


def test_an_extra_that_is_advised_brings_the_module_that_is_missing() -> None:
    distributions = importlib.metadata.packages_distributions() | {"google": ["protobuf"]}
    required = list(calls("require"))
    assert len(required) >= 6
    for path, (extras, *modules) in required:
        for module in modules:
            names = {name.lower() for name in distributions[module.partition(".")[0]]}
            assert names & brought(extras), f"{path.name}: {module} is not in holdfast[{extras}]"
    for path, (extras, *_) in calls("needs"):
        assert set(extras.split(",")) <= EXTRAS.keys(), path


def test_all_means_all_but_what_developers_need() -> None:
    assert brought("all") == {name for extra in EXTRAS if extra not in ("dev", "mutants") for name in brought(extra)}


def test_the_error_is_one_line_that_can_be_pasted() -> None:
    with pytest.raises(Exception, match=r"^this needs no_such_module: pip install 'holdfast\[agent,controller\]'$"):
        require("agent,controller", "grpc", "no_such_module")


@pytest.mark.parametrize(
    ("words", "module", "advice"),
    [
        (["train", "--steps", "1"], "numpy", "holdfast[trainer]"),
        (["diagnose", "--local", "--test", "gemm"], "psutil", "holdfast[agent]"),
        (["checkpoint", "import", ".", "file:///nowhere", "--step", "1"], "torch", "holdfast[trainer]"),
        (["run", "--nproc-per-node", "1", "-m", "this"], "fastapi", "holdfast[agent,controller]"),
    ],
)
def test_a_command_without_its_extra_says_so_before_it_starts_anything(
    words: list[str], module: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else found(name, *rest))
    monkeypatch.setenv("HOLDFAST_CONFIG", "")
    monkeypatch.setenv("HOLDFAST_CONTROLLER", "")
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"holdfast: this needs {module}: pip install '{advice}'"


def test_classifiers_are_true() -> None:
    classifiers = PROJECT["classifiers"]
    assert classifiers == sorted(classifiers)
    least = PROJECT["requires-python"].removeprefix(">=")
    versions = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert versions[0] == least
    assert not [name for name in classifiers if name.startswith("License")]  # the expression says it
    assert ("Typing :: Typed" in classifiers) == (ROOT / "holdfast" / "py.typed").exists()
