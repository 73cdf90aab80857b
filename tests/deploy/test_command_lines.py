"""Every command line of Holdfast in deploy/ parses: no file names a command or an option that does not exist."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.parse import parse

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")])
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.y*ml"))
CALL = re.compile(r"^ *(?:exec |until |#\s+)?holdfast (?P<words>[a-z].*)$", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def calls(text: str) -> list[list[str]]:
    """The words of each command, without redirections, backgrounding, and what a shell would put in."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = []
    for match in CALL.finditer(joined):
        line = re.sub(r'"\$\(scontrol .*?-1\)"', "SWITCH", match["words"])
        line = re.split(r" (?:>|>>|2>&1|&|\.\.\.|;)(?: |$)|[<>]/dev/null", line)[0]
        line = line.replace('"${nodes[@]/#/--node=}"', "--node=n1").removesuffix(" &")
        found.append(shlex.split(line))
    return found


def test_the_reader_of_scripts_sees_an_option_that_does_not_exist() -> None:
    [words] = calls("exec holdfast agent --controller x:1 \\\n    --no-such-thing >/dev/null &\n")
    assert words == ["agent", "--controller", "x:1", "--no-such-thing"]
    with pytest.raises(Exception, match="no-such-thing"):
        parse(words)


@pytest.mark.parametrize("path", [*SCRIPTS, *MANIFESTS, *DEPLOY.rglob("site.yml")], ids=named)
def test_scripts_and_comments(path: Path) -> None:
    for words in calls(path.read_text()):
        parse(words)


def test_the_batch_script_calls_all_that_it_needs() -> None:
    names = [words[0] for words in calls((DEPLOY / "slurm" / "holdfast.sbatch").read_text())]
    assert names == ["certs", "controller", "agent", "status", "run"]


def args_of(path: Path) -> Iterator[list[str]]:
    for document in yaml.safe_load_all(path.read_text()):
        yield from _args(document)


def _args(value: Any) -> Iterator[list[str]]:
    if isinstance(value, dict):
        if isinstance(value.get("args"), list):
            yield value["args"]
        for part in value.values():
            yield from _args(part)
    elif isinstance(value, list):
        for part in value:
            yield from _args(part)


def test_pods() -> None:
    found = [words for path in MANIFESTS for words in args_of(path)]
    assert sorted(words[0] for words in found) == ["agent", "controller"]
    for words in found:
        parse(words)


def test_arguments_that_an_overlay_adds() -> None:
    added = []
    for path in (DEPLOY / "kubernetes" / "overlays").rglob("kustomization.yaml"):
        for patch in yaml.safe_load(path.read_text()).get("patches", []):
            rows = yaml.safe_load(patch.get("patch", "[]"))
            added += [row["value"] for row in rows if row["path"].endswith("/args/-")]
    assert added
    parse(["agent", *added])


def test_images() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert text.count('ENTRYPOINT ["holdfast"]') == 2
    commands = [json.loads(found) for found in re.findall(r"^CMD (.+)$", text, re.MULTILINE)]
    assert [words[0] for words in commands] == ["controller", "agent"]
    for words in commands:
        parse(words)
