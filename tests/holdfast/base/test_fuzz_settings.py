"""Settings of a file, of the environment and of the trainer, with invalid values."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config.load import SECTIONS, load
from holdfast.base.errors import UsageError
from holdfast.base.settings import variable
from holdfast.trainer.__main__ import parse_all
from holdfast.trainer.settings import config as trainer
from holdfast.trainer.settings.load import load as load_trainer
from holdfast.trainer.settings.load import parse_override
from tests.holdfast.support import fuzz_train
from tests.holdfast.support.fuzz_values import FAULTS, HOSTS, NUMBERS, PATHS, STORES, TEXTS, Files

LITERALS = (
    "nan", "inf", "-inf", "-1", "0", "1e308", "-0.0", "9223372036854775808", "-9223372036854775809",
    "0x7fffffffffffffff", "9" * 4000, "9" * 5000, "1e999", "true", "''", "' '", "'many'", '"a\\u0000b"',
    '"\\u001b[31m"', "'1e308d'", "'9e99ms'",
    "'-1s'", "[]", "['']", "[1]", "{}", "{a = 1}", "{a = {b = 1}}", "1979-05-27", "07:32:00", "[[[[[[]]]]]]",
    "'~nobody-has-this-name'", "'" + "x" * 5000 + "'",
)  # fmt: skip
TEXT = [value.text for table in (TEXTS, NUMBERS, HOSTS, PATHS, STORES, FAULTS) for value in table]
FILES = ("--config", "--import-hf", "--export-hf", "--data")
FIELDS = [(section, field.name) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls)]


def every(config: Any) -> None:
    """Ask for all that is only read when it is needed."""
    for name in ("tls", "token", "address", "check"):
        method = getattr(config, name, None)
        if method is not None:
            method()


def attempts(kind: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """(what is tried, a function that loads it)"""
    for section, name in FIELDS:
        cls = SECTIONS[section]
        if kind == "file":
            for literal in LITERALS:
                file = folder / "holdfast.toml"
                file.write_text(f"[{section}]\n{name} = {literal}\n")
                yield f"[{section}] {name} = {literal[:60]}", lambda cls=cls, file=file: load(cls, {}, {}, file)
        else:
            for text in TEXT[::3]:
                env = {variable(section, name): text, "HOLDFAST_CONFIG": ""}
                yield f"{variable(section, name)}={text[:60]!r}", lambda cls=cls, env=env: load(cls, {}, env)


@pytest.mark.parametrize("kind", ["file", "environment"])
def test_every_setting(kind: str, tmp_path: Path) -> None:
    wrong = []
    for what, loads in attempts(kind, tmp_path):
        try:
            every(loads())
        except UsageError:
            pass
        except Exception as error:
            wrong.append(f"{what}: {error!r}")
    assert not wrong, "\n".join(wrong)


def trainers_settings() -> Iterator[str]:
    for section in dataclasses.fields(trainer.Config):
        for field in dataclasses.fields(getattr(trainer.Config(), section.name)):
            yield f"{section.name}.{field.name}"


def test_every_setting_of_the_trainer() -> None:
    wrong = []
    for setting in trainers_settings():
        for value in (*LITERALS, *TEXT[::8]):
            try:
                pair = parse_override(f"{setting}={value}")
                load_trainer(overrides=[pair])
            except UsageError:
                continue
            except Exception as error:
                wrong.append(f"{setting}={value[:60]}: {error!r}")
                continue
            if isinstance(pair[1], int | float) and not abs(pair[1]) < 1 << 53:
                wrong.append(f"{setting}={value[:60]}: taken")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("flag", [option.name for option in fuzz_train.options() if option.kind])
def test_every_flag_of_the_trainer(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.base.files.DEADLINE_S", 0.1)  # the pipe has no writer
    files = Files(tmp_path / "files")
    try:
        wrong = []
        for text in [*TEXT[::6], *(value.text for value in files.values() if flag in FILES)]:
            try:
                parse_all([f"{flag}={text}"])
            except UsageError:
                pass
            except Exception as error:
                wrong.append(f"{text[:60]!r}: {error!r}")
        assert not wrong, "\n".join(wrong)
    finally:
        files.close()
