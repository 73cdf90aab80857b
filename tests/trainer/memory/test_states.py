"""Figures worked out by hand, and those of papers, against what is expected of ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from forked import REPOSITORY

from holdfast.trainer.__main__ import parse
from holdfast.trainer.memory.choices import alternatives, next_that_fits, settings_of
from holdfast.trainer.memory.expected import Expected, expect
from holdfast.trainer.memory.states import paper_bytes
from holdfast.trainer.memory.words import ranks_of, table
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan, vocab_of, world_of


def expected(*argv: str, device: str = "cpu") -> Expected:
    config = parse([*argv])
    vocab = vocab_of(config.data.tokenizer)
    return expect(config, plan(config, world_of(config.parallel), vocab), vocab, device)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_figure_1_of_the_zero_paper(zero: int, gigabytes: float) -> None:
    assert paper_bytes(7.5e9, 64, zero) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_gpt2_has_its_parameters_and_four_words_of_each() -> None:
    # Embedding and positions, twelve layers of 12 h^2 and two norms, the last norm; no biases in matrices.
    h = 768
    parameters = (50257 + 1024) * h + 12 * (12 * h * h + 4 * h) + 2 * h
    found = expected("--model", "gpt2")
    assert found.parameters == parameters == 124_356_864
    kinds = found.ranks[0]
    assert (kinds.weights, kinds.gradients, kinds.optimizer) == (4 * parameters, 4 * parameters, 8 * parameters)


def test_bfloat16_keeps_a_float32_copy_and_two_averages() -> None:
    found = expected("--model", "gpt2", "--set", "train.dtype=bfloat16")
    kinds, parameters = found.ranks[0], 124_356_864
    assert (kinds.weights, kinds.gradients, kinds.optimizer) == (2 * parameters, 2 * parameters, 12 * parameters)
    # In the optimizer's step each gradient has a float32 copy, when activations have gone.
    assert kinds.buffers + kinds.activations >= 4 * parameters


@pytest.mark.parametrize(
    ("more", "gradients", "optimizer", "host"),
    [
        (["train.dtype=bfloat16"], 2, 16 * 16_000_000, 12),
        (["train.dtype=bfloat16", "optim.bucket=1000"], 2, 16 * 1000, 12),
        (["train.dtype=bfloat16", "optim.name=sgd", "optim.bucket=1000"], 2, 12 * 1000, 8),
        (["optim.bucket=1000"], 4, 8 * 1000, 8),
        (["optim.bucket=999999999"], 4, 8 * 124_356_864, 8),
    ],
)
def test_states_in_host_memory_leave_a_bucket_on_the_device(
    more: list[str], gradients: int, optimizer: int, host: int
) -> None:
    argv = [word for setting in ["optim.state=host", *more] for word in ("--set", setting)]
    found = expected("--model", "gpt2", *argv)
    kinds, parameters = found.ranks[0], 124_356_864
    assert (kinds.weights, kinds.gradients) == (gradients * parameters, gradients * parameters)
    assert (kinds.optimizer, found.host) == (optimizer, (host * parameters,))
    assert expected("--model", "gpt2").host == (0,)


def test_a_pipeline_holds_as_many_micro_batches_as_are_under_way() -> None:
    # 1F1B: pp - rank, of which each holds as much: a layer's input and what 18 h + heads + 1 numbers a token make.
    small = (
        "--set",
        "model.layers=4",
        "--set",
        "model.d_model=32",
        "--set",
        "model.heads=4",
        "--set",
        "data.seq_len=16",
    )
    found = expected(*small, "--pp", "4", "--set", "train.micro_batch_size=1")
    token = 16 * 4
    layer, boundary = (18 * 32 + 4 + 1) * token, 32 * token
    for rank, kinds in enumerate(found.ranks[:-1]):
        # What goes out is kept as well, with its graph; what comes in is the layer's first.
        assert kinds.activations == (4 - rank) * (layer + boundary)


def test_activations_beyond_the_cap_are_in_host_memory() -> None:
    plain = expected("--pp", "2")

    def capped(room: int) -> Expected:
        argv = ["train.activations=host", f"train.activation_bytes={room}"]
        return expected("--pp", "2", *(word for setting in argv for word in ("--set", setting)))

    whole = plain.ranks[0].activations
    # Two micro-batches are under way: with room for less than two, one leaves, and the host has both when they change.
    found = capped(whole * 3 // 4)
    one = whole - found.ranks[0].activations
    assert 0 < one <= whole // 2
    assert found.host[0] == 2 * one
    assert (found.ranks[1], found.host[1]) == (plain.ranks[1], 0), "the last rank never has two"
    assert (capped(whole).ranks, capped(whole).host) == (plain.ranks, (0, 0))
    with pytest.raises(ConfigError, match=r"activation_bytes is 1000: a computation saves \d+ bytes at once; raise it"):
        capped(1000)


def test_tensor_parallelism_divides_matrices_and_not_norms() -> None:
    alone, split = (expected("--tp", tp, "--set", "model.tied=true").ranks[0].weights for tp in ("1", "8"))
    h, matrices = 128, 4 * 12 * 128 * 128
    whole = 256 * h + 5 * h
    assert alone == 4 * (whole + matrices)
    assert split == 4 * (whole + matrices // 8)


def test_chimera_holds_every_stage_twice() -> None:
    argv = ("--pp", "4", "--set", "model.layers=8", "--set", "model.tied=false", "--zero", "0")
    plain, both = (expected(*argv, "--schedule", name) for name in ("1f1b", "chimera"))
    assert sum(r.weights for r in both.ranks) == 2 * sum(r.weights for r in plain.ranks)


def test_recompute_holds_less_the_more_it_repeats() -> None:
    held = [
        expected("--set", "model.layers=8", "--set", f"train.recompute={kind}").ranks[0].activations
        for kind in ("none", "selective", "full")
    ]
    assert held[0] > held[1] > held[2]


def test_a_gpu_keeps_less_of_a_swiglu_than_a_cpu() -> None:
    # The gate lies side by side with what it opens; a CPU copies it: an inner width of numbers a token, and a layer.
    argv = ("--set", "model.mlp=swiglu", "--set", "model.layers=3", "--set", "train.micro_batch_size=1")
    cpu, gpu = (expected(*argv, device=device).ranks[0].activations for device in ("cpu", "cuda"))
    assert cpu - gpu == 3 * 64 * 4 * 128 * 4


def test_175b_on_64_gpus_of_80_gb_needs_recomputation() -> None:
    argv = ["--model", "gpt-175b", "--pp", "8", "--tp", "8", "--set", "train.dtype=bfloat16"]
    argv += ["--set", "train.micro_batches=16", "--set", "train.micro_batch_size=1"]
    config = parse(argv)
    found = expected(*argv, device="cuda")
    assert found.parameters == pytest.approx(175e9, rel=0.01)
    assert found.needs > 78e9
    best = next_that_fits(config, 64, 51200, "cuda", 78 * 10**9, ("1f1b",))
    assert best is not None
    choice, then = best
    assert then.needs <= 78e9
    again = parse([*argv, *(word for setting in settings_of(choice, config) for word in ("--set", setting))])
    assert again == choice.config, "what is said is what was worked out"


def test_alternatives_come_in_order_of_cost_with_the_chosen_one_among_them() -> None:
    found = alternatives(parse(["--pp", "2", "--dp", "2"]), 4, 256)
    costs = [choice.seconds for choice in found]
    assert costs == sorted(costs)
    assert sum(choice.is_chosen for choice in found) == 1
    by_name = {choice.name: choice.seconds for choice in found if choice.config.optim.state == "device"}
    assert by_name["none", 1, "1f1b", 2] < by_name["selective", 1, "1f1b", 2] < by_name["full", 1, "1f1b", 2]
    assert by_name["none", 1, "1f1b", 2] < by_name["none", 2, "1f1b", 2] < by_name["none", 3, "1f1b", 2]


def test_states_in_host_memory_are_an_alternative_that_costs_their_copies() -> None:
    argv = ["--model", "gpt2", "--set", "train.dtype=bfloat16"]
    config = parse(argv)
    vocab, parameters = vocab_of(config.data.tokenizer), 124_356_864
    found = [one for one in alternatives(config, 1, vocab, ("1f1b",)) if one.name == ("none", 1, "1f1b", 2)]
    device, host = found
    assert (device.config, host.config.optim.state) == (config, "host")
    # 12 bytes a parameter in each direction, both at once, over 50 GB/s; operations leave positions and norms out.
    assert host.seconds - device.seconds == pytest.approx(12 * parameters / 50e9, rel=0.01)
    # A bucket is an eighth of the parameters, unless a smaller one is set.
    assert host.config.optim.bucket % 128 == 0
    assert host.config.optim.bucket == pytest.approx(parameters / 8, rel=0.01)
    then = expect(host.config, host.layout, vocab, "cuda")
    kinds = then.ranks[0]
    assert (kinds.weights, kinds.gradients) == (2 * parameters, 2 * parameters)
    assert (kinds.optimizer, then.host) == (16 * host.config.optim.bucket, (12 * parameters,))
    small = parse([*argv, "--set", "optim.bucket=1000"])
    others = [one for one in alternatives(small, 1, vocab, ("1f1b",)) if one.config.optim.state == "host"]
    assert {one.config.optim.bucket for one in others} == {1000}


def test_what_updates_whole_tensors_and_what_has_no_other_memory_keep_their_states() -> None:
    for argv, device in ((["--optimizer", "lamb"], "cuda"), ([], "cpu")):
        found = alternatives(parse(argv), 1, 256, ("1f1b",), device)
        assert {one.config.optim.state for one in found} == {"device"}
    back = alternatives(parse(["--set", "optim.state=host"]), 1, 256, ("1f1b",))
    assert {one.config.optim.state for one in back} == {"device", "host"}
    assert {one.config.optim.bucket for one in back} == {16_000_000}


def test_nothing_fits_into_nothing() -> None:
    assert next_that_fits(parse([]), 1, 256, "cpu", 1, ("1f1b",)) is None


def test_ranks_that_hold_as_much_are_one_line() -> None:
    found = expected("--pp", "4", "--dp", "2", "--tp", "2", "--schedule", "gpipe", "--set", "model.layers=4")
    assert ranks_of(found, [0, 1, 3]) == "0-7,12-15"
    lines = table(found)
    assert len(lines) == 1 + len(set(found.ranks))
    assert sum("<- most" in line for line in lines) == 1


@pytest.mark.parametrize("argv", [["--model", "gpt-3"], ["--zero", "4"], ["--zero", "x"]])
def test_bad_input_is_one_line_without_torch(argv: list[str]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from holdfast.trainer.__main__ import main;"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120, cwd=REPOSITORY
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_pipeline_ranks_of_unlike_tp_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.stage_tp has several: set parallel\.tp instead"):
        expected("--pp", "2", "--set", "parallel.stage_tp=[1, 2]")


CHUNKS = ["--set", "train.micro_batches=1", "--set", "memory.policy=chunks", "--set", "memory.chunk_bytes=200000000"]


@pytest.mark.parametrize(("dtype", "word", "kept"), [("float32", 4, 12), ("bfloat16", 2, 12)])
def test_chunks_are_on_the_device_as_far_as_they_fit(dtype: str, word: int, kept: int) -> None:
    # GPT-2's table of 50257 x 768 is the largest parameter; the others of each chunk follow in order.
    argv = ["--model", "gpt2", *CHUNKS, "--set", f"train.dtype={dtype}"]
    whole = expected(*argv)
    kinds = whole.ranks[0]
    elements = 200_000_000 // word // 64 * 64
    count = -(-124_356_864 // elements)
    assert (kinds.weights, kinds.optimizer, kinds.gathered) == (0, 0, 0)
    assert kinds.chunks == count * elements * (word + kept)
    assert whole.host == (count * elements * word,)  # room for parameters, wherever they are
    # Room for two chunks beside everything else, which a layer at a chunk's end needs: no lists then.
    beside = kinds.total - kinds.chunks
    cap = beside + 2 * 200_000_000
    short = expected(*argv, "--set", f"memory.device_bytes={cap}")
    assert short.needs == cap
    assert short.host == (count * elements * (word + kept),)
    # Less: they are needed all the same.
    assert expected(*argv, "--set", f"memory.device_bytes={cap - 100_000_000}").needs == cap


def test_replicas_gather_the_chunks_of_what_they_compute() -> None:
    argv = ["--model", "gpt2", *CHUNKS, "--dp", "2", "--set", "train.micro_batches=2", "--zero", "3"]
    kinds = expected(*argv).ranks[0]
    elements = 200_000_000 // 4
    # Both chunks of the one or two groups that a unit is in.
    assert kinds.gathered in (2 * 4 * elements, 2 * 2 * 4 * elements)
    assert kinds.gradients == 2 * 4 * elements


def test_chunks_are_what_is_left_where_nothing_else_fits() -> None:
    config = parse(["--model", "gpt2", "--set", "data.seq_len=64", "--set", "train.micro_batches=2"])
    assert next_that_fits(config, 1, 256, "cpu", 10**9, ["1f1b"]) is not None
    limit = 480_000_000  # 16 bytes a parameter are 1.4 GB
    found = next_that_fits(config, 1, 256, "cpu", limit, ["1f1b"])
    assert found is not None
    choice, then = found
    assert then.needs <= limit
    assert settings_of(choice, config)[-2:] == ["memory.policy=chunks", f"memory.device_bytes={limit}"]
    assert (choice.config.train.micro_batches, choice.config.train.micro_batch_size) == (1, 4)
    assert next_that_fits(config, 1, 256, "cpu", 1_000_000, ["1f1b"]) is None
