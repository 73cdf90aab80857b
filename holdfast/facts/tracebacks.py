"""What a worker's last words say: the traceback in them, its signature, and whether it is a victim's.

Pure functions over text; the agent (what to report) and the controller (is it the same bug again? whose fault?)
must agree, so they share these.
"""

import re

_HEADER = "Traceback (most recent call last):"
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in |,? in )(?P<function>.+?)\s*$')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_PREFIX = re.compile(r"^(?:\[[^\]\n]{0,80}\]:? ?)(?=Traceback|  |[A-Za-z_.]+(?:Error|Exception|Exit|Interrupt)\b|\S+:)")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*|holdfast/agent|holdfast/trainer/runtime)/|^<frozen "
)
_HEX = re.compile(
    r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b"
)
_PATH = re.compile(r"(?:[A-Za-z]+:/)?/(?:[\w.@+~-]+/)+([\w.@+~-]*)")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[\d.,:]*\d)?|\.\d+)(?:[eE][-+]?\d+)?")
MAX_MESSAGE = 200
USER_FRAMES = 3
_MOST_OF_LINE = 1000
"""Characters that are looked at: a program may print a line of any length, and some patterns take the square of it."""

_SECONDARY = re.compile(
    r"connection (?:reset|closed|refused|aborted|timed out)|reset by peer|closed by peer|peer (?:has )?closed"
    r"|broken pipe|socket (?:closed|timeout|timed out)|remote (?:process|peer) (?:has )?(?:exited|closed|died)"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|collective operation timeout"
    r"|watchdog caught collective|timed out (?:waiting|after) .{0,40}(?:recv|send|operation)|gloo.{0,200}timed? ?out"
    r"|terminate called .{0,40}DistNetworkError|DistNetworkError|DistBackendError.{0,200}(?:remote|unhandled system)"
    r"|wait(?:ing)? timeout after \d+ ?ms|failed to recv, got 0 bytes|EOF when reading|no route to host"
    r"|ends with a worker that (was told to|received SIGTERM)",
    re.IGNORECASE,
)
_BETWEEN_RANKS = re.compile(
    r"gloo|nccl|c10d|torch[/.]distributed|ProcessGroup|DistBackend|DistNetwork|\b(?:MPI|UCX|UCC)\b", re.IGNORECASE
)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]")
_SIGNALLED = re.compile(
    r"^(?:KeyboardInterrupt|SystemExit)\b|SignalException|received signal 15|Received SIGTERM", re.MULTILINE
)


def last_traceback(text: str) -> str:
    """The last Python traceback in a tail of standard error, with its chain of causes; "" when there is none.

    A crash report of faulthandler ("Fatal Python error: Segmentation fault ...") counts as one. Log prefixes in
    square brackets (torchrun's "[rank0]: ") are taken off.
    """
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    starts = [i for i, line in enumerate(lines) if line.strip() == _HEADER or _FATAL.match(line)]
    if not starts:
        return ""
    start = starts[-1]
    if lines[start].startswith("Fatal Python error"):
        return "\n".join(_until_blank_twice(lines[start:]))
    end = _end(lines, start)
    while (before := _cause(lines, starts, start)) is not None:
        start = before
    return "\n".join(lines[start:end])


def _end(lines: list[str], start: int) -> int:
    """One past the last line of the traceback that begins at `start`: frames, then the error and its notes."""
    at = start + 1
    indent = len(lines[start]) - len(lines[start].lstrip())
    while at < len(lines) and (lines[at].startswith(" " * (indent + 1)) or not lines[at].strip()):
        at += 1
    if at >= len(lines):
        return len(lines)
    at += 1
    # A message of several lines ends at a blank line or at what starts like a fresh log line.
    while (
        at < len(lines)
        and lines[at].strip()
        and at - start < 400
        and not re.match(r"^[\[{]|^\d{4}-\d\d-\d\d|^[IWEF]\d{4} ", lines[at])
    ):
        at += 1
    return at


def _cause(lines: list[str], starts: list[int], start: int) -> int | None:
    """Where the traceback begins that led to the one at `start` ("The above exception ...", "During handling ...")."""
    joint = start - 1
    while joint >= 0 and not lines[joint].strip():
        joint -= 1
    if joint < 0 or not lines[joint].startswith(
        ("The above exception was the direct cause", "During handling of the above")
    ):
        return None
    earlier = [s for s in starts if s < joint and lines[s].strip() == _HEADER]
    return earlier[-1] if earlier else None


def _until_blank_twice(lines: list[str]) -> list[str]:
    kept: list[str] = []
    for line in lines[:200]:
        if not line.strip() and kept and not kept[-1].strip():
            break
        kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept


def normalise(message: str) -> str:
    """A message without what differs from run to run: addresses, ids, folders of paths, numbers."""
    message = _HEX.sub("<id>", message[:_MOST_OF_LINE])
    message = _PATH.sub(lambda match: match[1] or "<dir>", message)
    return _NUMBER.sub("<n>", message)[:MAX_MESSAGE].strip()


def signature(traceback: str) -> str:
    """What stays the same when the same bug strikes again; "" for text without a traceback.

    `type: message @ file:function:line < ...`: the exception, its normalised message, and the innermost frames of the
    user's own code (of any code where there is none of the user's), innermost first.
    """
    lines = [line[:_MOST_OF_LINE] for line in traceback.splitlines()]
    fatal = _FATAL.search(traceback)
    frames = [match for line in lines if (match := _FRAME.match(line)) is not None]
    if fatal is None and not frames and _HEADER not in traceback:
        return ""
    if fatal is not None:
        frames.reverse()  # faulthandler prints the innermost frame first
        error = normalise(fatal[0])
    else:
        last = max((i for i, line in enumerate(lines) if _HEADER in line), default=0)
        frames = [match for line in lines[last:] if (match := _FRAME.match(line)) is not None]
        error = _error(lines[last:])
    own = [frame for frame in frames if not _LIBRARY.search(frame["file"])] or frames
    places = [f"{f['file'].rpartition('/')[2]}:{f['function']}:{f['line']}" for f in reversed(own[-USER_FRAMES:])]
    return " @ ".join(part for part in (error, " < ".join(places)) if part)


def _error(lines: list[str]) -> str:
    for line in lines[1:]:
        if line[:1].isspace() or not line.strip():
            continue
        match = _ERROR.match(line)
        if match is None:
            return normalise(line)
        kind = match["type"].rpartition(".")[2]
        message = normalise(match["message"] or "")
        return f"{kind}: {message}" if message else kind
    return ""


def is_secondary(text: str) -> bool:
    """Whether these last words are a victim's: it was cut off by, or waited in vain for, another rank.

    Only a hint: the first worker to fail is the likelier culprit, and one whose words are not a victim's likelier
    still. An error of the program's own before it (out of memory, an assertion) makes the words its own.
    """
    last = last_traceback(text)
    if last:
        message = "\n".join(_messages(last))
        return bool(_SECONDARY.search(message) or _SIGNALLED.search(message))
    return bool(_SECONDARY.search(text) or _SIGNALLED.search(text))


def is_want_of_room(text: str) -> bool:
    """Whether these last words say that a disk is full, or a quota used up."""
    last = last_traceback(text)
    return bool(_NO_ROOM.search("\n".join(_messages(last)) if last else text))


def is_between_ranks(text: str) -> bool:
    """Whether these last words are of what ranks talk to each other by, and not of some other connection."""
    return bool(_BETWEEN_RANKS.search(last_traceback(text) or text))


def _messages(traceback: str) -> list[str]:
    """The error lines of the last traceback of a chain, without frames and quoted source."""
    lines = traceback.splitlines()
    last = max((i for i, line in enumerate(lines) if _HEADER in line), default=0)
    return [line for line in lines[last + 1 :] if line.strip() and not line.startswith(" ")]
