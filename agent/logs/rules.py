"""Rules over log lines: rows in `rules.toml`, a cheap test that passes over ordinary lines, a rate limit.

Ordinary lines must cost next to nothing: a line is looked at by regular expressions only if it contains one of the
rows' needles, and then only by the rows that own that needle. Of a long line only the beginning and the end count, and
no pattern of ours repeats without bound: whatever a worker prints, a line has a greatest cost.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.base.errors import UsageError
from holdfast.base.files import parse_toml, read_text
from holdfast.wire.types import Severity

K = TypeVar("K", bound=Hashable)

KINDS = frozenset(
    {"gpu", "gpu-memory", "communication", "hang", "memory", "storage", "numeric", "crash", "code", "host"}
)
PLACES = frozenset({"worker", "host"})
MOST_OF_LINE = 4096
"""Characters at the beginning of a line that patterns see, and as many at its end."""
_FIELDS = frozenset(
    {
        "name", "kind", "severity", "needles", "pattern", "exclude", "secondary", "where", "sample", "lines", "well",
        "well_needles",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogRule:
    """One row. `needles` empty: the pattern is tried on every line."""

    name: str
    kind: str
    severity: Severity
    pattern: re.Pattern[str]
    sample: str
    needles: tuple[str, ...] = ()
    exclude: re.Pattern[str] | None = None
    secondary: bool = False
    host: bool = False
    lines: int = 1
    """Matching lines of one worker in a row before it counts (see `streaks`)."""
    well: re.Pattern[str] | None = None
    """What a line looks like that ends such a row, and must have come before it."""
    well_needles: tuple[str, ...] = ()
    """Texts of which each such line contains one."""

    def matches(self, line: str) -> bool:
        return self.pattern.search(line) is not None and not (self.exclude and self.exclude.search(line))


class _Index:
    """The rules of one place, found by needle."""

    def __init__(self, rules: Sequence[LogRule]) -> None:
        self.always = [rule for rule in rules if not rule.needles]
        self.owners: dict[str, list[LogRule]] = {}
        self.order = {rule.name: at for at, rule in enumerate(rules)}
        for rule in rules:
            for needle in rule.needles:
                self.owners.setdefault(needle, []).append(rule)
        self.needles = tuple(self.owners)

    def match(self, line: str) -> LogRule | None:
        hits = [needle for needle in self.needles if needle in line]
        if not hits and not self.always:
            return None
        tried = {rule.name: rule for rule in self.always}
        tried.update((rule.name, rule) for needle in hits for rule in self.owners[needle])
        for rule in sorted(tried.values(), key=lambda rule: self.order[rule.name]):
            if rule.matches(line):
                return rule
        return None


class Rules:
    """A set of rules. The first row that matches a line wins."""

    def __init__(self, rules: Sequence[LogRule]) -> None:
        self.all = tuple(rules)
        self._worker = _Index([rule for rule in rules if not rule.host])
        self._host = _Index([rule for rule in rules if rule.host])

    def match(self, line: str, host: bool = False) -> LogRule | None:
        """The first rule that the line matches, or None; `host` for lines of the kernel log."""
        return (self._host if host else self._worker).match(clip(line))

    def scan(self, text: str) -> Iterator[tuple[str, LogRule]]:
        """The lines of a block of a worker's output that match a rule, in order. Cheaper than line by line."""
        index = self._worker
        if index.always:
            candidates = text.split("\n")
        else:
            starts: dict[int, None] = {}
            for needle in index.needles:
                at = text.find(needle)
                while at >= 0:
                    starts[text.rfind("\n", 0, at) + 1] = None
                    end = text.find("\n", at)
                    at = text.find(needle, end) if end >= 0 else -1
            candidates = [text[s : e if (e := text.find("\n", s)) >= 0 else None] for s in sorted(starts)]
        for line in map(clip, candidates):
            if (rule := index.match(line)) is not None:
                yield line, rule


def clip(line: str) -> str:
    """The line, without the middle of a long one."""
    return line if len(line) <= 2 * MOST_OF_LINE else f"{line[:MOST_OF_LINE]} ... {line[-MOST_OF_LINE:]}"


def load(extra: Sequence[str | Path] = ()) -> Rules:
    """Our rules, and before them those of the user's files, which replace ours of the same name.

    Raises UsageError, one line that names file, row and field, for a file that cannot be used.
    """
    rules: dict[str, LogRule] = {}
    for path in extra:
        for rule in parse(read_text(Path(path), "a file of log rules in TOML"), str(path)):
            rules.setdefault(rule.name, rule)
    ours = resources.files("holdfast.agent.logs").joinpath("rules.toml").read_text(encoding="utf-8")
    for rule in parse(ours, "rules.toml"):
        rules.setdefault(rule.name, rule)
    return Rules(tuple(rules.values()))


def parse(text: str, source: str) -> list[LogRule]:
    """The rows of one rule file. `source` is its name in messages. Raises UsageError."""
    document = parse_toml(text, source)
    rows = document.pop("rule", [])
    if document:
        raise UsageError(f"{source}: unknown key {next(iter(document))!r}; a rule file holds [[rule]] rows only")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{source}: write [[rule]], with two brackets, above each rule")
    rules = [_row(row, f"{source}: rule {number}") for number, row in enumerate(rows, 1)]
    names = [rule.name for rule in rules]
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise UsageError(f"{source}: rule {number} ({name}): name: used twice in this file")
    return rules


def _row(row: dict[str, Any], where: str) -> LogRule:
    if isinstance(row.get("name"), str):
        where = f"{where} ({row['name']})"

    def wrong(field: str, why: str) -> UsageError:
        return UsageError(f"{where}: {field}: {why}")

    def text(field: str, default: str | None = None) -> str:
        value = row.get(field, default)
        if not isinstance(value, str) or (not value and default is None):
            raise wrong(field, "missing" if field not in row else f"must be a string, not {value!r}")
        return value

    def regex(field: str) -> re.Pattern[str]:
        try:
            return re.compile(text(field))
        except (re.error, RecursionError, OverflowError) as error:
            raise wrong(field, f"not a regular expression: {error}") from error

    def one_of(field: str, value: str, known: frozenset[str]) -> str:
        if value not in known:
            raise wrong(field, f"{value!r} is not one of {', '.join(sorted(known))}")
        return value

    def texts(field: str) -> tuple[str, ...]:
        found = row.get(field, [])
        if not isinstance(found, list) or not all(isinstance(needle, str) and needle for needle in found):
            raise wrong(field, "must be a list of non-empty strings")
        return tuple(found)

    for field in row:
        one_of(field, field, _FIELDS)
    secondary, lines = row.get("secondary", False), row.get("lines", 1)
    needles, well_needles = texts("needles"), texts("well_needles")
    if not isinstance(secondary, bool):
        raise wrong("secondary", "must be true or false")
    if type(lines) is not int or not 1 <= lines <= 1000:
        raise wrong("lines", f"must be a number from 1 to 1000, not {lines!r}")
    if lines > 1 and not ("well" in row and well_needles):
        raise wrong("lines", "more than one line needs well and well_needles, too")
    if lines > 1 and row.get("where") == "host":
        raise wrong("lines", "the kernel's log is read by line")
    rule = LogRule(
        name=text("name"),
        kind=one_of("kind", text("kind"), KINDS),
        severity=Severity(one_of("severity", text("severity"), frozenset(Severity))),
        pattern=regex("pattern"),
        sample=text("sample"),
        needles=needles,
        exclude=regex("exclude") if "exclude" in row else None,
        secondary=secondary,
        host=one_of("where", text("where", "worker"), PLACES) == "host",
        lines=lines,
        well=regex("well") if "well" in row else None,
        well_needles=well_needles,
    )
    if not rule.matches(rule.sample):
        raise wrong("sample", "the pattern does not match it, or exclude does")
    if rule.needles and not any(needle in rule.sample for needle in rule.needles):
        raise wrong("needles", "none of them is in the sample")
    return rule


@dataclass(slots=True)
class _Window:
    since: float
    held: int = 0
    line: str = ""


class RateLimit(Generic[K]):
    """The first match of a rule passes at once; later ones at most once per `period` seconds, with their number."""

    def __init__(self, period: float = 10.0) -> None:
        self._period = period
        self._windows: dict[K, _Window] = {}

    def admit(self, key: K, line: str, now: float) -> int:
        """How many matches this line stands for: itself and those held back; 0 if it is held back too.

        `key` is the rule with its rank, `now` monotonic seconds.
        """
        window = self._windows.get(key)
        if window is None or now - window.since >= self._period:
            self._windows[key] = _Window(now)
            return 1 + (window.held if window is not None else 0)
        window.held += 1
        window.line = line
        return 0

    @property
    def holds(self) -> bool:
        """Whether `flush` may have anything to do yet."""
        return bool(self._windows)

    def flush(self, now: float) -> list[tuple[K, str, int]]:
        """What is held back and due, as `(key, latest line, number)`; keys long silent are forgotten."""
        due: list[tuple[K, str, int]] = []
        for key, window in list(self._windows.items()):
            if now - window.since < self._period:
                continue
            if window.held:
                due.append((key, window.line, window.held))
                self._windows[key] = _Window(now)
            else:
                del self._windows[key]
        return due
