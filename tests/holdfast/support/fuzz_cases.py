"""Which values are tried on which option: the command line's own tree says what there is, a table what each takes.

An option that is in the tree and not in the table is an error of the test: describe each new option here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.command_tree import command_tree
from tests.holdfast.support import fuzz_train
from tests.holdfast.support.fuzz_values import (
    ANY,
    BAD,
    FAULTS,
    FINE,
    HOSTS,
    MESHES,
    NUMBERS,
    PATHS,
    STEPS,
    STORES,
    TEXTS,
    Files,
    Value,
    with_codes,
)  # fmt: skip

GONE = "file:///nowhere/at/all"
EMPTY = "file:///sys"
"""A folder on every host in which nothing can be written, and no checkpoint is."""
BASE: dict[str, tuple[str, ...]] = {
    "demo": ("--nodes", "1", "--nproc", "2"),
    "run": ("--detach", "-m", "x"),
    "train-embeddings": ("--data", "gone"),
    "status": (),
    "nodes": (),
    "incidents": (),
    "logs": (),
    "top": ("--once",),
    "blame": ("gone",),
    "timeline": ("gone",),
    "stacks": (),
    "inject": ("kill:rank0",),
    "ack": ("gone",),
    "notify test": (),
    "cordon": ("node0",),
    "uncordon": ("node0",),
    "evict": ("node0",),
    "simulate": ("--nodes", "2", "--spares", "0", "--gpus", "1", "--days", "0.01"),
    "replay": ("gone",),
    "schedules": ("1f1b",),
    "memory": ("--schedule", "1f1b"),
    "plan": ("--cluster", "gone.toml"),
    "profile": ("--output", "gone/profile.json", "--tps", "0"),
    "rows": (),
    "share": ("gone.toml",),
    "diagnose": (),
    "controller": ("--grpc-port", "0", "--http-port", "0", "--state-dir", "state"),
    "agent": ("--no-warm", "--state-dir", "state", "--controller", "127.0.0.1:1"),
    "certs": ("--dir", "made"),
    "jobs": (),
    "job": (),
    "job stop": (),
    "job restart": (),
    "checkpoint now": ("--wait", "0"),
    "checkpoint list": (EMPTY,),
    "checkpoint show": (EMPTY,),
    "checkpoint verify": (EMPTY,),
    "checkpoint prune": (EMPTY, "--keep", "1"),
    "checkpoint protect": (EMPTY, "--step", "1"),
    "checkpoint export": (EMPTY, "made", "--to", "dcp"),
    "checkpoint import": ("made", GONE, "--step", "1"),
    "dashboards export": ("made",),
    "deploy export": ("made",),
}
"""Words that are right, for each command: one of them is replaced, or one is added."""

KINDS = {
    "N": "number", "K": "number", "X": "number", "DAYS": "number", "SECONDS": "number", "DURATION": "number",
    "TIME": "number", "MIN": "number", "STEP": "number", "PPxDPxTP": "mesh", "ABSPATH": "text",
    "FILE": "settings", "DIR": "folder", "PATH": "file", "[FOLDER]": "file", "HOST:PORT": "host", "A:B": "steps",
    "KIND@STEP:TARGET": "fault", "KIND[@STEP][:TARGET]": "fault", "LIST": "text", "TEXT": "text", "NAME": "text",
    "NAME.KEY=VALUE,...": "text", "NAME|ID": "text", "[ID]": "text", "NODE": "text", "[NODE]...": "text",
    "[RANK|NODE]": "text", "[ID]...": "text",
    "QUESTION": "text", "time|memory": "text", "S": "number", "REGEX": "text", "LEVEL": "text", "LINE": "text",
    "FIGURE": "text", "[NAME|ID]": "text", "[RECEIVER]": "text",
    "NAME|NAME=VALUE": "text", "N|RANK:N,...": "text", "RANK,...": "text", "SIGNAL,...": "text", "TEXT,...": "text",
    "MODULE,...": "text",
    "[TARGET]": "text", "SUITE": "text", "VALUE": "text", "hf|dcp": "text", "N|MIN:MAX": "text",
    "N|auto|gpu|cpu": "text", "N|auto": "text", "SIZE": "number", "[NAME]": "text", "cuda|cpu": "text",
    "float32|float64": "text",
    "URL": "text", "SCRIPT": "file", "ARGS...": "text", "PART": "text", "FILE|live": "settings", "even|alpa": "text",
    "GBIT": "number", "pp=N,dp=N,tp=N": "text", "sgd|rowwise-adagrad": "text",
}  # fmt: skip
"""What an option takes, by what stands for its value in the help."""

SPECIAL = {
    "state_dir": "folder", "sysfs_root": "folder", "controller": "host", "record": "output", "output_file": "output",
    "log_dir": "folder", "draw": "output",
}  # fmt: skip


NO_FILES = ("empty", "nothing", "standard input", "file: empty", "file: bad.toml", "file: json", "file: long line",
            "file: unreadable")  # fmt: skip
"""What may stand for no file at all, and files of text that some option could take."""


LEGAL = {
    "run --max-restarts: negative", "run --priority: negative", "controller --max-restarts: negative",
    "simulate --seed: a billion", "train-embeddings --seed: a billion",
    *(f"schedules --{name}-bytes: {value}" for name in ("activation", "weight", "message")
      for value in ("empty", "a billion")),
    "schedules --memory: empty",
    *(f"memory --{name}: {value}" for name in ("limit", "reserve") for value in ("empty", "a billion")),
    "top --rows: a billion", "top --rows: 64 bits",
    "inject fault: a billionth rank", "checkpoint prune --keep: a billion", "checkpoint prune --keep: 64 bits",
    "checkpoint prune --keep-every: a billion", "checkpoint prune --keep-every: 64 bits",
    *(f"checkpoint {name} --step: {size}" for name in ("show", "verify", "protect", "export", "import")
      for size in ("a billion", "64 bits")),
    *(f"run --{name}: empty" for name in (
        "pause-limit", "idle-limit", "idle-limit-start", "exit-limit", "pause-alert", "hang-floor", "hang-steps",
        "hang-limit-start", "stuck-limit", "shutdown-timeout", "share",
    )),
    *fuzz_train.LEGAL,
}  # fmt: skip
"""Values that are bad elsewhere and right here; a negative number of restarts is -1, any number; an empty limit is the
controller's, and what else is empty counts as not given."""
ASKS_NOBODY = ("blame", "timeline", "agent", "dashboards export", "train-embeddings")
"""Commands that read files first, write addresses down, or ask no controller but their own."""


@dataclass(frozen=True, slots=True)
class Case:
    command: str
    option: str
    value: Value
    argv: tuple[str, ...]

    @property
    def codes(self) -> frozenset[int]:
        if self.name in LEGAL or (self.value.codes == FINE and self.command in ASKS_NOBODY):
            return ANY
        return self.value.codes

    @property
    def name(self) -> str:
        return f"{self.command} {self.option}: {self.value.label}"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        if words and (not children or command.invoke_without_command):
            yield " ".join(words), command
        for name, child in children.items():
            yield from walk(child, (*words, name))

    yield from walk(command_tree(), ())


def kind(command: str, param: Any) -> str:
    if param.metavar == "URL" and command.startswith("checkpoint"):
        return "store"
    return SPECIAL.get(param.name) or KINDS[param.metavar]


def cases(files: Files) -> Iterator[Case]:
    of_kind = table(files)
    for command, found in commands():
        if command == "train":
            yield from _of_train(of_kind)
            continue
        base = list(BASE[command])
        for param in found.params:
            name = param.opts[0]
            if getattr(param, "is_flag", False):
                yield Case(command, name, Value("a value", "1"), (*command.split(), f"{name}=1", *base))
                continue
            if param.metavar is None:
                raise KeyError(f"{command} {name}: no metavar")
            for value in of_kind[kind(command, param)]:
                yield Case(command, name, value, (*command.split(), *_with(base, found, param, value.text)))


def _of_train(of_kind: dict[str, tuple[Value, ...]]) -> Iterator[Case]:
    for option in fuzz_train.options():
        values = of_kind[option.kind] if option.kind else (Value("a value", "1"),)
        for value in values:
            yield Case("train", option.name, value, ("train", f"{option.name}={value.text}", *option.needs))


def _with(base: Sequence[str], command: Any, param: Any, text: str) -> list[str]:
    """The right words, with one of them replaced or added."""
    words = list(base)
    if param.param_type_name == "option":
        if param.opts[0] in words:
            at = words.index(param.opts[0])
            del words[at : at + 2]
        return [f"{param.opts[0]}={text}", *words]
    place = [one for one in command.params if one.param_type_name == "argument"].index(param)
    flags = {opt: one for one in command.params if one.param_type_name == "option" for opt in one.opts}
    at = [i for i, word in enumerate(words) if _is_argument(words, i, flags)]
    if place < len(at):
        words[at[place]] = text
        return words if not text.startswith("-") else [*words[: at[place]], "--", *words[at[place] :]]
    return [*words, "--", text] if not words or words[-1] != "x" else [*words, text]


def _is_argument(words: Sequence[str], i: int, flags: dict[str, Any]) -> bool:
    if words[i].startswith("-"):
        return False
    before = flags.get(words[i - 1]) if i else None
    return before is None or bool(getattr(before, "is_flag", False))


WHOLE = ("status", "inject", "blame", "replay", "timeline", "certs", "checkpoint list", "demo", "train")
"""Commands on whose options all values are tried: one for each kind, since the same code reads them everywhere."""


def dealt(files: Files, whole: bool) -> list[Case]:
    """A part of all cases: on every option one value, another one on the next; if `whole`, also all values of a kind
    on the first option that takes it."""
    of_option: dict[tuple[str, str], list[Case]] = {}
    for case in cases(files):
        of_option.setdefault((case.command, case.option), []).append(case)
    chosen, seen = [], set()
    for number, ((command, _), found) in enumerate(of_option.items()):
        labels = (command == "train", *(case.value.label for case in found))  # which has a parser of its own
        if whole and command in WHOLE and labels not in seen:
            seen.add(labels)
            chosen += found
        else:
            chosen.append(found[number % len(found)])
    return chosen


def table(files: Files) -> dict[str, tuple[Value, ...]]:
    read = (*PATHS, *files.values(ANY))
    return {
        "number": NUMBERS,
        "text": (*TEXTS, *with_codes(NUMBERS, ANY)),
        "host": (*HOSTS, *TEXTS),
        "fault": (*FAULTS, *with_codes(TEXTS, BAD)),
        "steps": (*STEPS, *with_codes(TEXTS, BAD, "empty")),
        "mesh": (*MESHES, *with_codes(TEXTS, BAD, "empty")),
        "file": with_codes(read, BAD, *NO_FILES),
        "settings": with_codes(read, BAD, *NO_FILES, "file: empty", "file: nul.toml"),
        "folder": with_codes(read, ANY),
        "output": with_codes(read, ANY),
        "store": (*STORES, *files.values(ANY)),
        "setting": fuzz_train.SETTING,
        "model": fuzz_train.MODEL,
        "rendezvous": with_codes((*TEXTS, *HOSTS), BAD),
        "data": with_codes(read, BAD, "empty"),
        "source": with_codes(read, BAD),
    }
