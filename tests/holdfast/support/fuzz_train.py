"""The options of `holdfast train`, which its own parser has and the command line's tree does not."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.trainer.__main__ import build_parser
from tests.holdfast.support.fuzz_values import BAD, NUMBERS, TEXTS, Value, with_codes

if TYPE_CHECKING:
    from holdfast.trainer.run.loop import Outcome

STUB = "holdfast.trainer.run.loop:_train=tests.holdfast.support.fuzz_train:no_steps"
"""All of a run is real but its steps: data, mesh, model and store are set up and closed."""
MODULES = ("holdfast.trainer.run.loop",)
"""What takes seconds to import."""

_GONE = ("--store", "file:///nowhere/at/all")
_SAMPLE = ("--sample", "x", *_GONE)
"""Words without which an option is not looked at."""
_STORE = ("--set", "checkpoint.timeout_s=2")
"""A store that does not answer is asked again for 30 s, which a failover of HDFS takes, unless a setting says less."""
_NEEDS = {
    "--store": _STORE, "--sample": _GONE, "--export-hf": _GONE, "--tokens": _SAMPLE, "--temperature": _SAMPLE,
}  # fmt: skip

_KINDS = {
    "--config": "settings", "--set": "setting", "--rendezvous": "rendezvous", "--data": "data", "--store": "store",
    "--sample": "text", "--schedule": "text", "--model": "model", "--optimizer": "text",
    "--export-hf": "folder", "--import-hf": "source",
}  # fmt: skip
"""What an option takes, where its type does not say so."""
LEGAL = {
    "train --steps: a billion", "train --seed: a billion", "train --checkpoint-every: a billion",
    "train --tokens: a billion", "train --tokens: 64 bits", "train --temperature: a billion",
    "train --temperature: 64 bits", "train --store: empty",
    "train --set: train.steps=hexadecimal", "train --set: train.steps=a billion",
}  # fmt: skip
"""Values that are bad elsewhere and right here."""
MODEL = (
    *with_codes(TEXTS, BAD),
    *(
        Value(label, text)
        for label, text in (
            ("a module that is not there", "no_such_module:build"), ("a file that is not there", "no/such.py:build"),
            ("a file without a function", "model.py"), ("nothing on both sides", ":"), ("two functions", "a:b:c"),
            ("a module without it", "json:build"), ("no function", "math:pi"), ("one that wants more", "json:loads"),
            ("one that makes no module", "os:getcwd"), ("not a name", "my-model:build"),
        )
    ),
)  # fmt: skip
"""Shapes of published models, and functions that make modules."""
SETTING = (
    *with_codes(TEXTS, BAD),
    *(Value(f"train.steps={value.label}", f"train.steps={value.text}", value.codes) for value in NUMBERS),
)


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    kind: str
    """What it takes; empty for one that takes nothing."""
    needs: tuple[str, ...]


def options() -> Iterator[Option]:
    """Every option. KeyError for one of which this file does not know what it takes."""
    for action in build_parser()._actions:
        if not action.option_strings:
            raise KeyError(f"train {action.dest}: an argument, of which the fuzz knows nothing")
        name = action.option_strings[-1]
        yield Option(name, _kind(action, name), _NEEDS.get(name, ()))


def _kind(action: argparse.Action, name: str) -> str:
    if action.nargs == 0:
        return ""
    return "number" if action.type in (int, float) else _KINDS[name]


def no_steps(config: Any, *_: Any) -> "Outcome":
    """In place of the loop over a run's steps."""
    from holdfast.trainer.run.loop import Outcome

    return Outcome(0, [])
