"""A model with NaN is found within few steps, whatever the cause; false positives are avoided; and the samples
stay within their share."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from holdfast.agent.hooks import finite as torch_finite  # noqa: E402
from holdfast.agent.hooks.finite import IN_ROW, Finite  # noqa: E402
from holdfast.agent.probe_file.events import Recorded  # noqa: E402

Step = Callable[[int], None]


class Clock:
    """Time spent on samples only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def model(width: int = 8) -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    return layers, torch.optim.SGD(layers.parameters(), lr=0.01)


def train(
    step: Callable[[int, Any, Any], None], steps: int = 30, made: Any = None, watch: Finite | None = None
) -> tuple[Finite, int]:
    """The watch, and the step of its first finding; -1: none. `step` computes and steps the optimizer."""
    net, optimizer = made or model()
    watch = watch or Finite(torch, Clock(), Clock())  # a stopped clock: every step is sampled
    handle = optimizer.register_step_post_hook(lambda optimizer, args, kwargs: watch.after(optimizer))
    seen = -1
    for n in range(steps):
        optimizer.zero_grad()
        step(n, net, optimizer)
        if watch.spoilt:
            seen = n
            break
    handle.remove()
    return watch, seen


def plain(net: Any, optimizer: Any, spoil: float = 1.0) -> None:
    (net(torch.ones(2, 8)).sum() * spoil).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("what", "late"),
    [
        ("a loss of NaN", 0),
        ("one weight", 1),
        ("an infinite loss", 1),
        ("a division by zero in one layer", 1),
    ],
)
def test_a_nan_is_seen_within_three_steps(what: str, late: int) -> None:
    def step(n: int, net: Any, optimizer: Any) -> None:
        if n == 10 and what == "one weight":
            with torch.no_grad():
                net[0].weight[0, 0] = math.nan
        if n == 10 and what == "a division by zero in one layer":
            nothing = net[0].weight - net[0].weight.detach()
            (net(torch.ones(2, 8)).square().mean() + 0 * nothing.sqrt().sum()).backward()
            optimizer.step()
            return
        plain(
            net, optimizer, {"a loss of NaN": math.nan, "an infinite loss": math.inf}.get(what, 1.0) if n == 10 else 1
        )

    _, seen = train(step)
    assert 10 + IN_ROW - 1 <= seen <= 10 + IN_ROW + late


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_any_optimizer_in_any_precision(kind: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        net = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 1)).to(dtype)
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)

        def step(n: int, net: Any, optimizer: Any) -> None:
            (net(torch.tensor([3, 5])).sum() * (math.nan if n == 5 else 1)).backward()
            optimizer.step()

        assert 5 < train(step, made=(net, optimizer))[1] < 12


def scaled(n: int, net: Any, optimizer: Any) -> None:
    """AMP: gradients that are infinite by design, and steps that are left out for it."""
    scaler = scaled.__dict__.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=5))
    scaler.scale(net(torch.ones(2, 8)).sum() * 1e3).backward()
    scaler.step(optimizer)
    scaler.update()


def a_batch_without_labels(n: int, net: Any, optimizer: Any) -> None:
    """Their mean is 0 / 0: the loss is NaN, also as printed; no gradient is."""
    logits = net(torch.ones(2, 8)).expand(2, 3)
    labels = torch.full((2,), -100 if n % 2 else 1)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert math.isnan(loss.item()) == bool(n % 2)
    loss.backward()
    optimizer.step()


def gradients_replaced(n: int, net: Any, optimizer: Any) -> None:
    (net(torch.ones(2, 8)).sum() * (math.nan if n % 2 else 1)).backward()
    for parameter in net.parameters():
        parameter.grad.nan_to_num_()
    optimizer.step()


def steps_left_out(n: int, net: Any, optimizer: Any) -> None:
    (net(torch.ones(2, 8)).sum() * (math.nan if n % 2 else 1)).backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
    if torch.isfinite(norm):
        optimizer.step()


def goes_back_by_itself(n: int, net: Any, optimizer: Any) -> None:
    """A learning rate finder, or a script that loads its last good state when the loss is NaN."""
    good = {name: value.clone() for name, value in net.state_dict().items()}
    if not all(value.isfinite().all() for value in good.values()):
        net.load_state_dict(goes_back_by_itself.__dict__["good"])
    else:
        goes_back_by_itself.__dict__["good"] = good
    plain(net, optimizer, math.nan if n % 5 == 4 else 1.0)


def no_sum(n: int, net: Any, optimizer: Any) -> None:
    """Large, and finite."""
    plain(net, optimizer, 1e12)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.clamp_(-1e30, 1e30)


@pytest.mark.parametrize(
    "step",
    [scaled, a_batch_without_labels, gradients_replaced, steps_left_out, goes_back_by_itself, no_sum],
    ids=lambda step: step.__name__,
)
def test_what_is_honest_is_left_alone(step: Callable[[int, Any, Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch, seen = train(step, 40)
    assert seen == -1
    assert watch.samples > 5, "and it was looked at"


def test_one_parameter_that_is_infinite_by_design_is_none() -> None:
    """A mask of -inf among the parameters, a scale that runs away: the loss is still finite."""
    net, _ = model()
    mask = torch.nn.Parameter(torch.tensor([0.0, -math.inf]))
    optimizer = torch.optim.SGD([*net.parameters(), mask], lr=0.01)

    def step(n: int, net: Any, optimizer: Any) -> None:
        (net(torch.ones(2, 8)).sum() + torch.softmax(mask, 0)[0]).backward()
        mask.grad.zero_()
        optimizer.step()

    assert train(step, made=(net, optimizer))[1] == -1


def test_what_is_not_trained_hides_nothing() -> None:
    net, _ = model()
    frozen = [torch.nn.Parameter(torch.ones(8), requires_grad=False) for _ in range(20)]
    unused = [torch.nn.Parameter(torch.ones(8)) for _ in range(6)]
    optimizer = torch.optim.SGD([*frozen[:8], *unused, *net.parameters()], lr=0.01)
    assert train(lambda n, net, o: plain(net, o, math.nan), made=(net, optimizer))[1] >= IN_ROW - 1


def test_each_optimizer_is_watched_and_none_is_kept() -> None:
    watch = Finite(torch, Clock(), Clock())
    first, second = model(), model()
    for _ in range(IN_ROW):
        assert not watch.spoilt
        for spoil, (net, optimizer) in ((1.0, first), (math.nan, second)):
            plain(net, optimizer, spoil)
            watch.after(optimizer)
    assert watch.spoilt
    assert len(watch._models) == 2
    del first, second, net, optimizer
    assert len(watch._models) == 0


def test_samples_stay_within_their_share() -> None:
    clock, cpu = Clock(), Clock()
    watch = Finite(torch, clock, cpu)

    class Costs(torch_finite._Model):
        def after(self, optimizer: Any) -> bool:
            cpu.now += 0.001
            return False

    _net, optimizer = model()
    watch._models[optimizer] = Costs(torch)
    for _ in range(1000):
        clock.now += 0.01
        watch.after(optimizer)
    assert cpu.now == pytest.approx(watch.samples * 0.001)
    assert cpu.now <= 0.0035 * clock.now
    assert watch.samples > 20


@pytest.mark.parametrize("on_gpu", [False, True])
def test_an_attempt_that_begins_with_nan_is_distinguished_from_one_that_gets_it(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two samples: no step waits for the first sums of a GPU, each step polls them."""
    clock = Clock()
    gpu, (net, optimizer) = Gpu(), model()
    watch = Finite(gpu if on_gpu else torch, clock, Clock())
    if on_gpu:
        real = torch_finite._Model._sum
        monkeypatch.setattr(torch_finite._Model, "_sum", lambda self, tensor: OnGpu(real(self, tensor)))
    plain(net, optimizer, math.nan)
    watch.after(optimizer)
    assert watch.began_spoilt == (not on_gpu)
    watch._next = 1.0
    watch.after(optimizer)
    gpu.done = True
    watch.after(optimizer)
    assert watch.began_spoilt
    assert watch.samples == 1
    for _ in range(2 * IN_ROW):
        assert watch.began_spoilt
        clock.now, gpu.done = clock.now + 1.0, True
        watch.after(optimizer)
    assert watch.spoilt


def test_one_good_sample_is_enough_to_have_begun_well() -> None:
    def step(n: int, net: Any, optimizer: Any) -> None:
        if n == 1:
            net.load_state_dict(good)
        plain(net, optimizer, math.nan if n in (0, 3) else 1.0)
        began.append(watch.began_spoilt)

    net, optimizer = model()
    good = {name: value.clone() for name, value in net.state_dict().items()}
    watch, began = Finite(torch, Clock(), Clock()), list[bool]()
    assert train(step, made=(net, optimizer), watch=watch)[1] == 3 + IN_ROW - 1
    assert began == [True, False, False, False, False, False]


def test_what_it_can_not_read_ends_the_watch_not_the_run() -> None:
    class Odd:
        def __init__(self) -> None:
            self.param_groups = [{"params": [object()]}]

    watch = Finite(torch, Clock())
    for _ in range(3):
        watch.after(Odd())
    assert watch.samples == 1
    assert not watch.spoilt


class Gpu:
    """As much of torch.cuda as is needed, on the CPU: a copy is there once its event has happened."""

    def __init__(self) -> None:
        self.capturing = False
        self.done = False
        self.events = 0
        self.cuda, self.float32 = self, torch.float32

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device(self, device: Any) -> Any:
        return torch.no_grad()

    def stack(self, sums: list[Any]) -> Any:
        return torch.stack([one.tensor for one in sums])

    def empty(self, count: int, dtype: Any, device: str, pin_memory: bool) -> Any:
        assert (device, pin_memory) == ("cpu", True)
        return torch.empty(count, dtype=dtype)

    def Event(self) -> "Gpu":
        self.events += 1
        self.done = False
        return self

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.done


class OnGpu:
    is_cuda = True
    device = "cuda:0"

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __float__(self) -> float:
        raise AssertionError("waited for the GPU")


def test_a_gpu_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are read by a later step, when they are there; nothing is done while a graph is captured."""
    gpu, (net, optimizer) = Gpu(), model()
    reported: list[Recorded] = []
    monkeypatch.setattr(
        torch_finite.probe, "recorded", lambda event: reported.append(Recorded(event, 0.0)) or reported[-1]
    )
    watch = Finite(gpu, Clock(), Clock())
    real = torch_finite._Model._sum
    monkeypatch.setattr(torch_finite._Model, "_sum", lambda self, tensor: OnGpu(real(self, tensor)))
    gpu.capturing = True
    plain(net, optimizer, math.nan)
    watch.after(optimizer)
    assert gpu.events == 0
    gpu.capturing = False
    for n in range(2 * IN_ROW):
        watch.after(optimizer)
        assert gpu.events == n // 2 + 1, "one sample at a time"
        assert not watch.spoilt
        assert sum(one.done for one in reported) == n // 2, "the agent is notified that its event has come"
        gpu.done = n % 2 == 1
    watch.after(optimizer)
    assert watch.spoilt
