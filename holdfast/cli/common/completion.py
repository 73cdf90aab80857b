"""Completion of names in the shell: jobs, incidents and nodes of the controller, and what is known without it.

The controller gets a second to answer. On any failure there is nothing to choose from: an error in the middle of a
command line that is being typed would help nobody.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import typer

from holdfast.base.config.client import ClientConfig
from holdfast.base.config.load import load
from holdfast.base.errors import HoldfastError
from holdfast.cli.common.client import Client, Json
from holdfast.facts.faults import KINDS

TIMEOUT_S = 1.0

Choices = list[tuple[str, str]]
"""A word, and what a shell shows beside it."""


def jobs(context: typer.Context, incomplete: str) -> Choices:
    """Ids and names."""
    found = _ask(context, lambda client: client.jobs())
    return _fitting(
        incomplete, ((job[key], f"{job['name']}, {job['state']}") for key in ("id", "name") for job in found)
    )


def incidents(context: typer.Context, incomplete: str) -> Choices:
    found = _ask(context, lambda client: client.incidents())
    return _fitting(
        incomplete, ((str(one["id"]), f"{one['kind']} on {one['culprit']}, {one['state']}") for one in found)
    )


def nodes(context: typer.Context, incomplete: str) -> Choices:
    found = _ask(context, lambda client: client.nodes())
    return _fitting(incomplete, ((node["name"], node["state"]) for node in found))


def faults(incomplete: str) -> Choices:
    """Kinds of faults, as far as the `@` or `:` behind them."""
    return _fitting(incomplete, ((kind, "") for kind in KINDS))


def targets(context: typer.Context, incomplete: str) -> Choices:
    """rankR of the newest job, and the names of all nodes."""
    ranks = _ask(context, lambda client: [{"name": f"rank{rank}"} for rank in client.ranks().get("rank", [])])
    known = _ask(context, lambda client: client.nodes())
    named = [(node["name"], node["state"]) for node in known]
    return _fitting(incomplete, [*((one["name"], "") for one in ranks), *named])


def suites(incomplete: str) -> Choices:
    from holdfast.diagnostics.catalog.catalog import Suite

    return _fitting(incomplete, ((str(suite), "") for suite in Suite))


def tests(incomplete: str) -> Choices:
    from holdfast.diagnostics.catalog.catalog import CHECKS

    return _fitting(incomplete, ((check.name, check.does) for check in CHECKS))


def schedules(incomplete: str) -> Choices:
    from holdfast.plan.schedules.table import SCHEDULES

    return _fitting(incomplete, ((name, one.when) for name, one in SCHEDULES.items()))


def receivers(incomplete: str) -> Choices:
    """Kinds of receivers of notifications, before their URL."""
    try:
        from holdfast.controller.alerts.receivers import KINDS as kinds
    except ImportError:  # installed without the controller
        return []
    return _fitting(incomplete, ((f"{kind}=", "") for kind in kinds))


def _ask(context: typer.Context, question: Callable[[Client], list[Json]]) -> list[Json]:
    """The answer of the controller that the words so far, the environment and the file name."""
    given: dict[str, Any] = {
        name: value
        for name, value in context.params.items()
        if name in ClientConfig.__dataclass_fields__ and value is not None
    }
    with suppress(HoldfastError, OSError):
        config = load(ClientConfig, given, file=context.params.get("config_file"))
        with Client(config, TIMEOUT_S) as client:
            return question(client)
    return []


def _fitting(incomplete: str, words: Iterable[tuple[str, str]]) -> Choices:
    return [(word, text) for word, text in dict(words).items() if word.startswith(incomplete)]
