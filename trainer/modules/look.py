"""`python -m holdfast.trainer.modules.look SETTINGS STAGES`: can the user's module be trained so?

In a process of its own, since it runs the user's code: what that prints, starts or breaks stays there. On meta tensors,
unless the module cannot be built on them. The answer is the last line that it prints: nothing, or what is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError

DEADLINE_S = 300.0
"""For importing torch and the user's code, building the module and tracing it."""


def look(config: Config, stages: int) -> None:
    """Raise ConfigError if the module of `config` cannot be trained in so many stages. Takes seconds."""
    build = config.module.build
    settings = {
        "module.build": build,
        "module.balance": config.module.balance,
        "data.seq_len": config.data.seq_len,
        "data.tokenizer": config.data.tokenizer,
        "train.seed": config.train.seed,
        "train.dtype": config.train.dtype,
        "train.micro_batch_size": config.train.micro_batch_size,
    }
    command = [sys.executable, "-m", "holdfast.trainer.modules.look", json.dumps(settings), str(stages)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"module.build = {build}: building and tracing it took more than {DEADLINE_S:g} s") from None
    if done.returncode == 0:
        return
    if done.returncode == 2:
        raise ConfigError(done.stdout.strip().rpartition("\n")[2])
    how = f"with exit code {done.returncode}"
    if done.returncode < 0:
        how = f"by {signal.Signals(-done.returncode).name}"
    last = done.stderr.strip().rpartition("\n")[2][:200]
    raise ConfigError(f"module.build = {build}: a process that builds it ended {how}{f' ({last})' if last else ''}")


def main(settings: str, stages: str) -> int:
    """In that process: 2 with what is wrong on standard output, or 0."""
    from holdfast.trainer.modules.stage import look_at
    from holdfast.trainer.settings.load import load

    try:
        config = load(overrides=json.loads(settings).items())
        look_at(config, int(stages))
    except ConfigError as error:
        print(f"\n{error}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # whatever the user's code has started or registered
