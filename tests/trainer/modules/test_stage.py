"""Stages of a module of the user's own: what they draw, what they hold, what is counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from forked import REPOSITORY
from torch import Tensor, nn

from holdfast.trainer.__main__ import parse
from holdfast.trainer.model.dropout import Moment
from holdfast.trainer.modules.message import Field, Message
from holdfast.trainer.modules.split import Partition, Piece, partition, seeded
from holdfast.trainer.modules.stage import ModuleStage, boundaries, open_module
from holdfast.trainer.modules.trace import trace

MODELS = REPOSITORY / "tests" / "trainer" / "support" / "own_models.py"
SMALL = ["--set", "data.seq_len=8", "--set", "train.micro_batch_size=2", "--set", "train.dtype=float64"]


@pytest.fixture(scope="module")
def dropping() -> Partition:
    return open_module(parse(["--model", f"{MODELS}:dropping", *SMALL]), 3, torch.device("cpu"))


def logits(whole: Partition, moment: Moment, micro_batch: int) -> torch.Tensor:
    x = torch.arange(16).view(2, 8) * 9
    with torch.no_grad():
        for index in range(whole.stages):
            x = ModuleStage(whole, index, moment)(x, micro_batch)
    return x


def test_what_is_drawn_depends_on_seed_step_and_micro_batch_alone(dropping: Partition) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = logits(dropping, Moment(1, step=2), 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, logits(dropping, Moment(1, step=2, first_micro_batch=2), 1))
    others = [(Moment(1, step=2), 4), (Moment(1, step=3), 3), (Moment(2, step=2), 3)]
    assert not any(torch.equal(first, logits(dropping, *other)) for other in others)


def test_the_device_gets_what_a_stage_holds_and_no_more() -> None:
    """Meta stands for a device: what is there has left the host."""
    whole = open_module(parse(["--model", f"{MODELS}:dropping", *SMALL]), 3, torch.device("meta"))
    assert {one.device.type for one in whole.trace.module.parameters()} == {"cpu"}
    held = ModuleStage(whole, 1, Moment(0))
    own = whole.parameters_of(1)
    assert {name for name, one in held.named_parameters() if one.is_meta} == own
    rest = {name: one for name, one in whole.trace.module.named_parameters() if name not in own}
    assert rest
    assert not any(one.is_meta for one in rest.values())


def test_each_dropout_draws_for_itself() -> None:
    x = torch.ones(64, dtype=torch.float64)
    drop = torch.ops.aten.dropout.default
    first, again, other = (seeded(drop, 3, site, x, 0.5, True) for site in ("dropout", "dropout", "dropout_1"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.tolist()) == {0.0, 2.0}


def test_a_stage_has_the_parameters_of_its_operations_by_their_names(dropping: Partition) -> None:
    held = [dict(ModuleStage(dropping, index, Moment(0)).named_parameters()) for index in range(3)]
    assert [set(names) for names in held] == [dropping.parameters_of(index) for index in range(3)]
    assert {"table.weight", "moment.bias"} <= set(held[0])
    assert "head.weight" in held[2]
    assert all(value is dropping.trace.module.get_parameter(name) for names in held for name, value in names.items())
    assert "frozen" in dict(ModuleStage(dropping, 0, Moment(0)).held.named_buffers())


def test_messages_are_of_the_size_that_their_cut_needs(dropping: Partition) -> None:
    # Residual stream and the very first activation, 2 x 8 x 16 each, and 2 x 8 flags of a byte in elements of 8; then,
    # before the head, which costs as much as four layers, one activation.
    assert [len(one) for one in boundaries(dropping, torch.device("cpu")).values()] == [2 * 2 * 8 * 16 + 2, 2 * 8 * 16]


def test_flops_are_those_of_its_matrices(dropping: Partition) -> None:
    tokens, width = 2 * 8, 16
    matrices = 2 * tokens * (width * width + 8 * 2 * 2 * width * width + width * 256)
    assert matrices <= dropping.trace.flops <= 1.15 * matrices


def test_stages_are_balanced(dropping: Partition) -> None:
    cuts = [0, *dropping.cuts.places, len(dropping.trace.operations)]
    facts, total = dropping.trace.facts, dropping.trace.flops
    shares = [sum(one.cost for one in facts[a:b]) / total for a, b in pairwise(cuts)]
    assert max(shares) < 0.4


def test_both_ends_have_a_copy_of_a_tied_table() -> None:
    whole = open_module(parse(["--model", f"{MODELS}:net", *SMALL]), 3, torch.device("cpu"))
    stages = [ModuleStage(whole, index, Moment(0)) for index in range(3)]
    assert [stage.tied for stage in stages] == ["table.weight", None, "table.weight"]
    first, last = (dict(stages[index].named_parameters())["table.weight"] for index in (0, 2))
    assert torch.equal(first, last)
    assert first.data_ptr() != last.data_ptr()


class Late(nn.Module):
    """What its table gives is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(9, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        first = x = self.table(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x + first  # type: ignore[no-any-return]


def test_a_stage_that_passes_a_value_on_holds_nothing_of_what_made_it() -> None:
    whole = partition(trace(Late(), (torch.zeros(2, 3, dtype=torch.int64),)), 3, torch.float32)
    held = [{name for name, _ in Piece(whole, index).named_parameters()} for index in range(3)]
    assert [("table.weight" in names) for names in held] == [True, False, False]
    assert held == [whole.parameters_of(index) for index in range(3)]


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 2, 1)])
def test_a_message_keeps_any_order_of_memory(order: tuple[int, ...]) -> None:
    value = torch.randn(2, 3, 5).permute(order)
    message = Message((Field.of(value, True), Field.of(value > 0, False)), torch.float32)
    back, flags = message.unpack(message.pack([value, value > 0]))
    assert torch.equal(back, value)
    assert torch.equal(flags, value > 0)
    assert back.stride() == value.stride()
