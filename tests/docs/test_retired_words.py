"""Words that the field does not use stay out: of names in the code, and of what people read."""

import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "checkpoint", "controller", "dashboards", "diagnostics", "holdfast", "trainer")

NAMES = {
    "barred": "quarantined",
    "cadence": "heartbeat_interval",
    "comeback": "restore",
    "cured": "without_suspect",
    "dice": "rng",
    "ensemble": "node_detectors",
    "guilty": "faulty",
    "knock": "probe_peer",
    "lives": "runs, attempts",
    "offence": "node_failure",
    "offences": "node_failures",
    "pardon": "extend_deadlines, or reset",
    "riders": "piggybacked",
    "rivals": "baselines",
    "shooter": "snapshotter",
    "strays": "orphans",
    "suffer": "inject",
    "tell": "report, notify",
    "tells": "reports",
    "telling": "reporting",
    "told": "reported",
}
"""Parts of names -> what to write instead."""
WHOLE_NAMES = {
    "Absence": "NodeLoss",
    "Box": "TensorShard",
    "ClockAsked": "ClockRequest",
    "ClockTold": "ClockReply",
    "Counted": "BlameTotals",
    "Door": "ProbeListener",
    "EventStore": "SpanStore",
    "Keeper": "SpanSink, SchedulerReconciler, CheckpointManager",
    "KnockAt": "ProbePeer",
    "Neighbours": "HostPeers",
    "Standing": "PendingCollective",
    "Talk": "Transport",
    "Warm": "ForkServer",
    "away_together": "correlated_loss",
    "come_first": "raise_priority",
    "gathering": "gc_paused",
    "held_for": "pending_diagnosis",
    "keep_meeting_place": "keep_rendezvous_alive",
    "kept_out": "gc_disabled",
    "take_out": "evict",
    "tend": "collect",
}
PROSE = {
    r"warm process(es)?": "fork server",
    r"given back to its owner": "marked failed",
    r"meeting place": "rendezvous",
    r"comeback": "restore from the journal",
    r"offences?": "node failure",
    r"barred": "quarantined",
    r"cadence": "heartbeat interval",
    r"guilty": "faulty",
    r"convicts?": "evicts, blames",
    r"knock(s|ing)?": "probe",
    r"is no number": "is NaN, is not a number",
    r"want of memory": "the OOM killer",
    r"(is|are|was|were) told": "is reported, is notified, is asked",
    r"tells? (of|the|its|it|people|you)": "reports, notifies, says",
}
"""Patterns of whole words -> what to write instead."""


def names(text: str) -> Iterator[tuple[int, str]]:
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for before, token, after in zip(
        ["", *(t.string for t in tokens)], tokens, [*(t.string for t in tokens[1:]), ""], strict=False
    ):
        is_kept = token.string == "LIVES_ALIKE"  # the name of a finding kind, which stays
        is_of_a_file = token.string == "tell" and before == "." and after == "("
        if token.type == tokenize.NAME and not (is_of_a_file or is_kept):
            yield token.start[0], token.string


@functools.cache
def instead(name: str) -> str | None:
    """What to write instead of it; None if it may stay."""
    return WHOLE_NAMES.get(name) or next((NAMES[part] for part in sorted(parts(name)) if part in NAMES), None)


def parts(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def retired(text: str) -> list[tuple[int, str]]:
    """Names of a module that are retired, each with its line."""
    # Of most modules no word is, be it a name or not: that is found out in a tenth of the time that tokens take.
    if not any(map(instead, set(re.findall(r"\w+", text)))):
        return []
    return [(line, name) for line, name in names(text) if instead(name)]


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks"])
def test_names_are_of_the_field(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" in path.name or path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
            continue
        for line, name in retired(path.read_text()):
            found.append(f"{path.relative_to(ROOT)}:{line}: {name}: write {instead(name)}")
    assert not found, "\n".join(found)


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS += sorted((ROOT / "deploy").rglob("*.json")) + sorted((ROOT / "deploy").rglob("*.y*ml"))
TEXTS += [ROOT / "controller" / "detectors" / "base" / "findings.toml"]


def test_texts_are_of_the_field() -> None:
    patterns = {re.compile(rf"\b({old})\b", re.IGNORECASE): new for old, new in PROSE.items()}
    found = []
    for path in TEXTS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            plain = re.sub(r"`[^`]*`", "", line)
            for pattern, new in patterns.items():
                if match := pattern.search(plain):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {new}")
    assert not found, "\n".join(found)


def test_what_is_retired_is_found() -> None:
    assert {"told", "at"} == parts("told_at")
    assert {"clock", "told"} == parts("ClockTold")
    assert retired("x = 'told'  # told\ndef was_told(riders):\n    f.tell()\n") == [(2, "was_told"), (2, "riders")]
    assert retired("class Keeper: pass\n") == [(1, "Keeper")]
    assert retired("kept = LIVES_ALIKE\n") == []
    assert re.search(rf"\b({'|'.join(PROSE)})\b", "nodes are told of it")
    assert not re.search(rf"\b({'|'.join(PROSE)})\b", "cadences, retold")
