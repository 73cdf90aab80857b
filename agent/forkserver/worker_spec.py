"""What the agent asks the fork server to start: one worker, whole and serialisable."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from holdfast.agent.probe_file.layout import ENV_GENERATION, ENV_PATH
from holdfast.agent.processes.tree import MARK
from holdfast.wire.messages import Program

Key = tuple[str, int, int]
"""Job, generation, rank: names one worker, and is never reused."""
_NEWER = ("executable", "virtual_local_rank", "log_dir", "redirects", "stdin")
"""Fields of a program that the first fork servers did not know."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. `env` is its whole environment; output goes to the end of `out_path` and `err_path`, or to memory."""

    job: str
    generation: int
    rank: int
    local_rank: int
    env: dict[str, str]
    program: Program
    out_path: str
    err_path: str
    error_file: str = ""
    """Where the traceback of an uncaught exception goes, in torch elastic's form; "" for nowhere."""
    probe_path: str = ""
    """The worker's probe file; "" for a worker that is not watched."""
    in_memory: bool = False
    """Does output go to memory that the fork server holds (`output_memory`), where there is such?"""

    @property
    def key(self) -> Key:
        return self.job, self.generation, self.rank

    @property
    def mark(self) -> str:
        """The value of HOLDFAST_WORKER by which all processes of this worker are found."""
        return mark(self.key)

    def environment(self) -> dict[str, str]:
        """`env` with what the probe, the error file and the search for orphaned workers need."""
        env = {"RANK": str(self.rank), "LOCAL_RANK": str(self.local_rank), **self.env}
        env[MARK] = self.mark
        env[ENV_GENERATION] = str(self.generation)
        if self.probe_path:
            env[ENV_PATH] = self.probe_path
        if self.error_file:
            env.setdefault("TORCHELASTIC_ERROR_FILE", self.error_file)
        return env

    def to_json(self) -> dict[str, Any]:
        """A field that is as ever stays away: a fork server of an older version may still serve here."""
        plain = asdict(self)
        usual = {one.name: one.default for one in fields(Program) if one.name in _NEWER}
        program = {name: value for name, value in plain["program"].items() if value != usual.get(name, ...)}
        program.pop("preload", None)  # the fork server's, not the worker's
        plain["program"] = program
        return plain if self.in_memory else {name: plain[name] for name in plain if name != "in_memory"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "WorkerSpec":
        """Raises TypeError or KeyError for anything that `to_json` did not make."""
        program = dict(data["program"])
        program["args"] = tuple(program["args"])
        return cls(**{**data, "program": Program(**program)})


def mark(key: Key) -> str:
    return "/".join(map(str, key))
