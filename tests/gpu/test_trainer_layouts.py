"""Layouts of ranks on one real GPU compute what one process computes, there and on the CPU; twice, and after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.gpu.conftest import Start
from tests.gpu.driven import driven
from tests.gpu.jobs import Row, apart, finished, merged, rows, settings, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DEADLINE_S = 60.0
WITHIN = {"float32": 1e-4, "bfloat16": 3e-2}
"""Relative, of losses of two layouts: they differ by rounding."""

HALF = {"train__dtype": "bfloat16"}
LLAMA = {"model__block": "serial", "model__mlp": "swiglu", "model__kv_heads": 4}
GPT = {"model__norm": "layer", "model__positions": "learned", "model__tied": "true", "model__dropout": 0.1}
PP2, TP2, TP4 = {"parallel__pp": 2}, {"parallel__tp": 2}, {"parallel__tp": 4}
SEQUENCE = {"parallel__sequence": "true"}
# Ranks, their layout, and what is the same in one process: as in tests/pretended_gpu.
CASES: dict[str, tuple[int, dict[str, object], dict[str, object]]] = {
    "pp2 tp2": (4, {**PP2, **TP2}, {}),
    "pp2 tp2 llama": (4, {**PP2, **TP2}, {**HALF, **LLAMA}),
    "pp2 dp2 zbv": (4, {**PP2, "parallel__schedule": "zbv"}, HALF),
    "pp2 dp2 bfs zero3": (
        4, {**PP2, "parallel__zero": 3, "parallel__zero_unit": "stage", "parallel__schedule": "bfs"}, HALF,
    ),
    "tp4 sequence": (4, {**TP4, **SEQUENCE, "parallel__shard_vocabulary": "true"}, HALF),
    "tp2 gpt": (2, TP2, {**HALF, **GPT}),
    "tp2 llama sequence overlap": (2, {**TP2, **SEQUENCE, "parallel__overlap_chunks": 2}, {**HALF, **LLAMA}),
    "tp2 prefetch": (2, {**TP2, "data__loader": "shared", "data__prefetch": 2}, {}),
    "pp2 recompute dropout": (2, {**PP2, "train__recompute": "full,selective"}, {**HALF, "model__dropout": 0.1}),
    "dp2": (2, {"parallel__zero": 0}, {}),
    "dp2 zero2 lamb": (2, {"parallel__zero": 2}, {**HALF, "optim__name": "lamb"}),
    "dp2 zero3 sgd": (2, {"parallel__zero": 3}, {**HALF, "optim__name": "sgd"}),
}  # fmt: skip
WINDOWS = {
    "window half": {**HALF, "model__window": 16},
    "window dropout": {"model__window": 16, "model__dropout": 0.1},
    "window": {"model__window": 16},
}
SPLIT, TOO_OLD = "pp2 dp2 zbv", "cannot do that through an autograd.Function"
"""What an older torch is refused with, see trainer/pipeline/halves.py."""
STEPS = {"train__steps": 3, "model__layers": 4}


def _key(same: dict[str, object]) -> str:
    return "alone " + ",".join(f"{key}={value}" for key, value in same.items())


def test_layouts_compute_what_one_process_computes(start: Start, tmp_path: Path) -> None:
    def run(name: str, *changes: dict[str, object]) -> Row:
        return {"name": name, "argv": settings(tmp_path, **merged(STEPS, *changes))}

    def of(world: int) -> list[Row]:
        return [run(name, layout, same) for name, (ranks, layout, same) in CASES.items() if ranks == world]

    alone = {_key(same): run(_key(same), same) for _, _, same in CASES.values()}
    cpu = {"parallel__device": "cpu"}
    jobs = [
        (1, [*alone.values(), run("gpu llama", LLAMA), run("again", HALF, LLAMA), run("again plain")]),
        (1, [run("cpu plain", cpu), run("cpu llama", LLAMA, cpu)]),
        (2, of(2)),
        (4, [*of(4), run("pp2 tp2 again", CASES["pp2 tp2"][1])]),
    ]
    pairs = {name: (_key(same), _within(same)) for name, (_, _, same) in CASES.items()}
    pairs |= {
        _key({}): ("cpu plain", 1e-4), "gpu llama": ("cpu llama", 1e-4), "again": (_key({**HALF, **LLAMA}), 0.0),
        "again plain": (_key({}), 0.0), "pp2 tp2 again": ("pp2 tp2", 0.0),
    }  # fmt: skip
    found: dict[str, Row] = {}
    problems: list[str] = []
    print()
    for row in driven(start, tmp_path, jobs, DEADLINE_S + 20, silent_s=40):
        name = row["name"]
        found[name] = row
        if name == SPLIT and TOO_OLD in row.get("error", ""):
            print(f"{name}: refused, as it should be: {row['error']}", flush=True)
            del pairs[name]
        elif "error" in row:
            problems.append(f"{name}: {row['error']}")
            print(f"FAILED {problems[-1]}", flush=True)
        else:
            print(f"{name:28} losses {row['losses']}; {row['step_s'] * 1e3:.1f} ms a step, "
                  f"{row['whole_s']:.1f} s with start", flush=True)  # fmt: skip
    for name, (other, within) in pairs.items():
        if missing := [one for one in (name, other) if not found.get(one, {}).get("losses")]:
            print(f"{name:28} not compared: {' and '.join(missing)} failed")
            continue
        far = apart(found[name]["losses"], found[other]["losses"])
        print(f"{name:28} within {far:.1e} of {other}")
        if not far <= within:
            problems.append(f"{name}: losses {found[name]['losses']}, {other} has {found[other]['losses']}: {far:.2e} "
                            f"apart, more than {within}")  # fmt: skip
    assert not problems, "\n".join(problems)


def _within(same: dict[str, object]) -> float:
    return WITHIN["bfloat16" if "train__dtype" in same else "float32"]


def test_windows_are_those_of_the_cpu(start: Start, tmp_path: Path) -> None:
    """In processes of their own: FlexAttention is compiled."""
    runs = [{"name": n, "argv": settings(tmp_path, **STEPS, **changes)} for n, changes in WINDOWS.items()]
    runs.append({**runs[1], "name": "window dropout again"})
    on_cpu = {"name": "cpu", "argv": settings(tmp_path, **STEPS, **WINDOWS["window"], parallel__device="cpu")}
    found: dict[str, Row] = {}
    print()
    for row in driven(start, tmp_path, [(1, runs), (1, [on_cpu])], DEADLINE_S, silent_s=45):
        found[row["name"]] = row
        print(f"{row['name']:28} {row.get('losses', row.get('error'))} {row.get('step_s', 0) * 1e3:.1f} ms a step, "
              f"{row.get('whole_s', 0):.1f} s", flush=True)  # fmt: skip
    assert not [name for name, row in found.items() if "error" in row]
    assert apart(found["window"]["losses"], found["cpu"]["losses"]) < 1e-4
    assert apart(found["window half"]["losses"], found["cpu"]["losses"]) < WITHIN["bfloat16"]
    assert found["window dropout"]["losses"] == found["window dropout again"]["losses"]


def test_after_a_kill_the_run_goes_on_with_the_same_bits(start: Start, tmp_path: Path) -> None:
    chosen: dict[str, object] = {**STEPS, **HALF, **LLAMA, "model__dropout": 0.1, "train__steps": 8}
    kept: dict[str, object] = {"checkpoint__store": (tmp_path / "store").as_uri(), "checkpoint__every": 2}
    run = {"name": "killed", "argv": settings(tmp_path, **chosen, **kept)}
    whole = started(start, tmp_path, [{"name": "whole", "argv": settings(tmp_path, **chosen)}])
    (first,) = started(start, tmp_path, [{**run, "dies_at": 5}])
    assert first.wait(DEADLINE_S / 2) == -signal.SIGKILL, first.output[-4000:]
    second = started(start, tmp_path, [run])
    found, problems = finished([*whole, *second], DEADLINE_S / 2)
    assert not problems, "\n".join(problems)
    began = found["killed"]["first"]
    print(f"\nwent on at step {began} of 8: {found['killed']['losses']}, the whole run {found['whole']['losses']}")
    assert began == 4
    assert not rows(first)
    assert found["killed"]["losses"] == found["whole"]["losses"][began:]
