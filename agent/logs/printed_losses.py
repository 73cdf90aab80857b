"""The losses that a worker prints: one that leaps far above all before it, or that stays there, is reported.

The first training loss of a line counts, by what it is called: `loss` and `lm loss` are two series. Losses of an
evaluation, of a part of the model or of a table's column are none.
"""

import re
from collections.abc import Callable

from holdfast.agent.forkserver.worker_spec import Key
from holdfast.facts.losses import DIVERGES, LEAPS, LossHistory
from holdfast.wire.types import LogMatched, Severity

_NEEDLES = ("oss", "OSS")
_LINES = re.compile(r"[\r\n]+")  # a progress bar writes its line again and again
# Begins with letters, not with what may stand before them: a line costs a fifth of what it does the other way round.
_LOSS = re.compile(
    r"""[Ll](?:oss|OSS)((?i:_(?:step|epoch|avg|mean|total|train))?)"""
    r"""["']?(?:\s{0,8}(?:[=:]|->|\bis\b|\bwas\b)\s{0,8}|[ \t]{1,2})(?:tensor\(\s{0,8})?["']?"""
    r"""([-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?)(?![\w%/:]|[.,\-]\d)"""
)
_BEFORE = re.compile(
    r"(?i)(?<![\w.\-/])"
    r"((?:(?:train(?:ing)?|total|lm|mlm|avg|average|mean|batch|step|running|smooth(?:ed)?|epoch|global)[_/ ]){0,4})\Z"
)
_LONGEST = 48  # characters of such words
_OTHERS = re.compile(
    r"(?i)(?<![a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?|test|dev|aux|best|lowest|min|max|previous|target|scaled)"
    r"(?![a-z])"
)
_STEP = re.compile(r"(?i)\b(?:global[ _])?(?:step|iter(?:ation)?)s?\b[^\w\n]{0,12}(\d{1,18})")
_MOST_SERIES = 8  # of one worker


def loss_of(line: str) -> tuple[str, float, int] | None:
    """The name of the line's training loss, its value, and the step that the line names, or -1."""
    for found in _LOSS.finditer(line):
        begin = found.start()
        before = _BEFORE.search(line, max(0, begin - _LONGEST), begin)
        if before is None:
            continue
        if _OTHERS.search(line, 0, begin):
            return None
        step = _STEP.search(line)
        name = f"{before[1]}loss{found[1]}".lower().replace("_", " ").replace("/", " ")
        return name, float(found[2]), int(step[1]) if step else -1
    return None


class PrintedLosses:
    """`look` gets all output of a worker, in order."""

    def __init__(self, on_match: Callable[[LogMatched], None], wall_ns: Callable[[], int]) -> None:
        self._on_match, self._wall = on_match, wall_ns
        self._series: dict[Key, dict[str, LossHistory]] = {}

    def look(self, key: Key, text: str) -> None:
        if not any(needle in text for needle in _NEEDLES):
            return
        for line in _LINES.split(text):
            if any(needle in line for needle in _NEEDLES) and (found := loss_of(line)) is not None:
                self._take(key, line, *found)

    def _take(self, key: Key, line: str, name: str, loss: float, step: int) -> None:
        series = self._series.setdefault(key, {})
        if (history := series.get(name)) is None:
            if len(series) >= _MOST_SERIES:
                return
            history = series[name] = LossHistory()
        problem = history.observe(step, loss)
        if problem is not None:
            rule = DIVERGES if problem.diverges else LEAPS
            said = f"{problem.text}; it printed: {line.strip()[:200]}"
            self._on_match(LogMatched(*key, self._wall(), rule, "numeric", Severity.WARNING, said))

    def forget(self, key: Key) -> None:
        """The worker is gone."""
        self._series.pop(key, None)
