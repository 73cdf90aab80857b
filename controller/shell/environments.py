"""The values of jobs' environment variables: a file for each job, for its owner only, and nothing else has them.

They hold credentials as a rule (cloud keys, tokens of trackers). So they leave a job's specification before the brain,
the journal and a recording see it, and are put into the commands that start workers on the way to the agents. A job's
file is removed when the job is over.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.base import log, private
from holdfast.base.errors import Unavailable
from holdfast.wire import messages as msg

FOLDER = "environments"


class Environments:
    """`folder`: made when the first job with variables comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, str]] = {}

    def keep(self, job: str, values: Mapping[str, str]) -> None:
        """Before the job is accepted: a controller that is killed afterwards finds them again. Raises Unavailable."""
        self._known[job] = dict(values)
        if not values:
            return
        path = self._path(job)
        part = path.with_suffix(".part")
        try:
            private.make_folder(self._folder)
            with open(part, "w", encoding="utf-8", opener=private.opener) as file:
                json.dump(self._known[job], file)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
        except OSError as error:
            self._remove(part)
            self._known.pop(job, None)
            raise Unavailable(f"cannot write the job's environment to {path}: {error.strerror or error}") from None

    def filled(self, command: msg.Command) -> msg.Command:
        """The command as an agent needs it. What the controller itself adds to a program's environment comes last."""
        order = command.order
        if not isinstance(order, msg.StartWorkers):
            return command
        program = order.program
        values = self._of(command.job)
        if not values:
            return command
        return replace(command, order=replace(order, program=replace(program, env={**values, **program.env})))

    def forget(self, job: str) -> None:
        """The job is over, or was refused."""
        self._known.pop(job, None)
        self._remove(self._path(job))

    def keep_only(self, jobs: Collection[str]) -> None:
        """At the start of the controller: an earlier one may have been killed before it removed a file."""
        wanted = {self._path(job).name for job in jobs}
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if path.name not in wanted:
                self._remove(path)

    def _of(self, job: str) -> dict[str, str]:
        if job not in self._known:
            self._known[job] = self._read(job)
        return self._known[job]

    def _read(self, job: str) -> dict[str, str]:
        path = self._path(job)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {str(name): str(value) for name, value in found.items()}
        except FileNotFoundError:
            return {}  # it has no variables
        except (OSError, ValueError, AttributeError) as error:
            # Its text is not in the message: it may be a value.
            log.error("environment.unreadable", job=job, path=str(path), error=type(error).__name__)
            return {}

    def _path(self, job: str) -> Path:
        return self._folder / f"{job}.json"

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("environment.left", path=str(path), error=error.strerror or str(error))
