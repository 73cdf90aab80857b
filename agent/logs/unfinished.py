"""The last line of a stream while it has no end: a progress bar, or a question that waits for its answer. Pure.

Bars such as tqdm's return to the start of the line (`\\r`) and write it again; what counts is what a terminal would
show: the text after the last return.
"""

from dataclasses import dataclass

APART_S = 0.25
"""Seconds between two reports of one stream: a bar moves ten times a second, and eyes do not follow that."""


def visible(line: str) -> str:
    """What a terminal shows of a line.

    >>> visible("10%\\r50%\\r"), visible("plain\\r")
    ('50%', 'plain')
    """
    return line.rstrip("\r").rpartition("\r")[2]


def needed(rest: bytes) -> bytes:
    """The part of an unfinished line that still matters, from its last return: a bar of hours needs no memory for what
    it was."""
    start = rest.rstrip(b"\r").rfind(b"\r")
    return rest[start:] if start > 0 else rest


@dataclass(slots=True)
class Unfinished:
    """What was last reported of one stream."""

    shown: str = ""
    shown_at: float = -APART_S
    waits: bool = False
    """Is there something to report at a later look?"""

    def look(self, rest: bytes, is_new: bool, now: float) -> str:
        """The text to report now; "" for none. `rest`: what follows the last line end, `is_new`: read just now. Text
        that arrived just now may be the first half of a line, so only a bar's is reported at once."""
        text = visible(rest.decode("utf-8", "replace"))
        if not text:
            self.shown, self.waits = "", False
            return ""
        if text == self.shown:
            self.waits = False
            return ""
        is_early = now - self.shown_at < APART_S or (is_new and b"\r" not in rest)
        self.waits = is_early
        if is_early:
            return ""
        self.shown, self.shown_at = text, now
        return text
