"""Watch an unmodified PyTorch script: optimizer steps, collectives, and the two halves of DistributedDataParallel.

Nothing here changes what the script computes or raises. A script that reports through `probe` itself is left to do
so. With `torch_groups` this is all of the agent that touches torch, and only in a worker that has it anyway.
"""

import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from holdfast.agent import observations, open_operations, probe
from holdfast.agent.hooks import finite as torch_finite
from holdfast.agent.hooks import global_steps, import_times, imports, initial_steps, saves, torch_record
from holdfast.agent.hooks import groups as torch_groups
from holdfast.agent.hooks import spans as torch_spans
from holdfast.agent.probe_file.groups import GroupTable
from holdfast.agent.probe_file.memory import Memory
from holdfast.agent.probe_file.open_rows import OpenTable
from holdfast.wire.types import Phase

COLLECTIVES: tuple[str, ...] = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)
"""What blocks (or at least is handed over) in the calling thread; `torch_groups` sees the wait for the others."""

_TOGETHER = frozenset(COLLECTIVES) - {
    "batch_isend_irecv", "recv", "recv_object_list", "send", "send_object_list",
}  # fmt: skip
"""Those that all ranks of a group do."""

_STARTS_THREADS = "_new_process_group_helper"
_WAIT_INSIDE = ("_broadcast_coalesced", "_verify_params_across_processes")
"""Functions of DistributedDataParallel that wait in C++, their first argument the group."""

_destroyed: list[Any] = []
"""Process groups that the script has destroyed."""
_installed = False
_times: torch_spans.StepTimes | None = None
_groups: torch_groups.Watch | None = None


def _leave_untraced(torch: Any) -> None:
    """Keep torch.compile from tracing our own functions where it runs a part of a model as it is: it would warn the
    user of what it finds in them."""
    skip = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
    if skip is None:
        return
    for owner in (
        observations,
        open_operations,
        probe,
        open_operations.Wait,
        Memory,
        torch_groups.Group,
        GroupTable,
        OpenTable,
    ):
        for one in vars(owner).values():
            if isinstance(one, FunctionType) and one.__module__.startswith("holdfast."):
                skip(one.__code__)


def install_when_imported() -> None:
    """Install now if torch is here already, else as soon as the script imports it."""
    saves.watch()
    import_times.watch()
    imports.when_imported("torch", lambda torch: install())


def install() -> None:
    """Install all hooks, once. An unexpected torch is reported in one line and then not watched."""
    global _installed, _times
    if _installed:
        return
    _installed = True
    try:
        torch: Any = importlib.import_module("torch")
        _leave_untraced(torch)
        _times = torch_spans.StepTimes(torch.autograd.Variable._execution_engine.queue_callback)
        _times.watch_garbage()
        _watch_optimizers(torch)
        _watch_loaders()
        if torch.distributed.is_available():
            _watch_collectives(torch)
            _watch_ddp(torch)
    except Exception as error:
        print(f"holdfast: this torch version cannot be watched fully: {type(error).__name__}: {error}", file=sys.stderr)


class _Steps:
    """Counts the steps of the first optimizer of the process: a second one (a GAN's, say) is not another step."""

    def __init__(self, torch: Any) -> None:
        self.no_grad: Callable[[], Any] = torch.no_grad
        self.finite = torch_finite.Finite(torch)
        self.first: weakref.ref[Any] | None = None
        self.count = 0
        self.known = global_steps.GlobalSteps()

    def before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        probe.operation("")  # the backward pass, whose end is not reported, is over
        if _times is not None and not observations.spoke() and (_compiling() or initial_steps.outer() is None):
            _times.optimizer(any(one is not None for one in (*args[1:], kwargs.get("closure"))))

    def after(self, optimizer: Any, args: object, kwargs: object) -> None:
        outer = None if _compiling() else initial_steps.outer()
        if _times is not None and not observations.spoke() and outer is None:
            _times.optimizer_done()
        if outer is optimizer:
            return  # torch calls the hooks for the class and once more for its base
        if self.count == 0 and initial_steps.is_initial():
            return
        if not observations.spoke() and not _compiling():
            self.finite.after(optimizer)
        first = self.first() if self.first is not None else None
        if first is None:
            self.first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        if self.finite.began_spoilt and not self.finite.spoilt:
            return  # a step on parameters that are not finite is no progress
        if self.count == 0:
            import_times.first_step()
        if self.known.is_known:
            observations.step(self.known.number(), self.finite.spoilt, is_numbered=True)
        else:
            observations.step(self.count, self.finite.spoilt)
        self.count += 1
        if not observations.spoke() and probe.poisoned():
            self.poison(optimizer)

    def poison(self, optimizer: Any) -> None:
        """Set one number of the model to NaN, so that the script's own next loss is NaN."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if local.numel() and local.is_floating_point():
                    with self.no_grad():
                        local[(0,) * local.dim()] = float("nan")
                    return


def _watch_optimizers(torch: Any) -> None:
    steps = _Steps(torch)
    global_steps.watch(steps.known)
    optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it as an attribute
    optimizers.register_optimizer_step_pre_hook(steps.before)
    optimizers.register_optimizer_step_post_hook(steps.after)


def _watch_loaders() -> None:
    """Time what a step waits for its batch, where torch's DataLoader brings it."""
    base = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
    load = base.__next__

    @functools.wraps(load)
    def watched(self: Any) -> Any:
        if observations.spoke() or threading.current_thread() is not threading.main_thread():
            return load(self)  # no thread waits for what a thread of its own loads ahead
        with probe.span(torch_spans.LOAD):
            return load(self)

    base.__next__ = watched


def _watch_collectives(torch: Any) -> None:
    global _groups
    c10d = torch.distributed.distributed_c10d
    _groups = watch = torch_groups.install(torch)
    for name in COLLECTIVES:
        if (function := getattr(c10d, name, None)) is not None:
            _replace(torch, name, _named(function, name))
    if (function := getattr(c10d, _STARTS_THREADS, None)) is not None:
        setattr(c10d, _STARTS_THREADS, _starting(function))
    _replace(torch, "new_group", _making(c10d.new_group, watch))
    _replace(torch, "init_process_group", _setup(c10d.init_process_group, watch))
    _replace(torch, "destroy_process_group", _teardown(c10d.destroy_process_group, watch))
    for name in _WAIT_INSIDE:
        if (function := getattr(torch.distributed, name, None)) is not None:
            setattr(torch.distributed, name, _waiting(function, watch))
    probe.record_with(torch_record.Recorder(torch, watch).look)


def _replace(torch: Any, name: str, wrapper: Callable[..., Any]) -> None:
    meshes = sys.modules.get("torch.distributed.device_mesh")  # which has its own names for some of them
    for module in (torch.distributed.distributed_c10d, torch.distributed, meshes):
        if hasattr(module, name):
            setattr(module, name, wrapper)


def _starting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a process group, and starts its threads."""

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with probe.starting_services():
            return function(*args, **kwargs)

    return watched


def _making(function: Callable[..., Any], watch: torch_groups.Watch) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with probe.operation("new_group"):
            with watch.making_group(args, kwargs):
                made = function(*args, **kwargs)
            watch.meet()
            return made

    return watched


def _waiting(function: Callable[..., Any], watch: torch_groups.Watch) -> Callable[..., Any]:
    """A function that begins collectives of a group in C++ and waits for them there."""

    @functools.wraps(function)
    def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
        with open_operations.wait_for_all(watch.slot(group)):
            return function(group, *args, **kwargs)

    return watched


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    # A traced call must reach the very function that the compiler knows, with nothing of ours around it.
    compiling = sys.modules["torch"].compiler.is_compiling

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return function(*args, **kwargs)
        with probe.operation(name):
            if name not in _TOGETHER or observations.spoke():
                return function(*args, **kwargs)
            with torch_spans.collective(name, kwargs.get("group")):
                return function(*args, **kwargs)

    return watched


def _setup(function: Callable[..., Any], watch: torch_groups.Watch) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not observations.stepped():
            observations.phase(Phase.SETUP)
        with probe.operation("init_process_group"):
            made = function(*args, **kwargs)
            watch.meet()
            return made

    return watched


def _teardown(function: Callable[..., Any], watch: torch_groups.Watch) -> Callable[..., Any]:
    """No steps are expected any more. What is destroyed is kept until the process ends, or the next time.

    torch 2.13's destructor of a gloo group takes a mutex that it may never get, with the interpreter lock held: seen in
    14 of 47 plain DDP scripts, at the end of `main`; under torchrun 5 of 13 aborted there ("terminate called without an
    active exception"). A worker ends without running destructors (`bootstrap.finish`), so nothing is left behind.
    """
    world = sys.modules["torch"].distributed.distributed_c10d._world

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if (args[0] if args else kwargs.get("group")) is None:
            observations.phase(Phase.DONE)
            _destroyed[:] = list(getattr(world, "pg_map", ()))
        watch.leaving += 1
        try:
            with probe.operation("destroy_process_group"):
                return function(*args, **kwargs)
        finally:
            watch.leaving -= 1

    return watched


def _watch_ddp(torch: Any) -> None:
    """Name the forward and the backward pass of DDP, whose all-reduces run inside C++ where no wrapper reaches."""
    ddp = torch.nn.parallel.DistributedDataParallel
    build = ddp.__init__
    slots: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @functools.wraps(build)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        with probe.operation("ddp:init"):
            build(self, *args, **kwargs)
        if _groups is not None and hasattr(self, "reducer"):
            slots[self.reducer] = _groups.slot(self.process_group)
        self.register_forward_pre_hook(_ddp_forward)
        self.register_forward_hook(_ddp_forward_done)

    ddp.__init__ = watched
    reducer: Any = getattr(torch.distributed, "Reducer", None)
    if (rebuild := getattr(reducer, "_rebuild_buckets", None)) is None:
        return

    @functools.wraps(rebuild)
    def rebuilds(self: Any) -> Any:
        """In the second forward the ranks agree on buckets, in C++."""
        if _compiling():
            return rebuild(self)
        with open_operations.wait_for_all(slots.get(self, 0)):
            return rebuild(self)

    reducer._rebuild_buckets = rebuilds


# Plain functions of this module, so that a model that carries them can still be copied and pickled.


def _ddp_forward(module: Any, args: object) -> None:
    if not _compiling():
        probe.operation("ddp:forward")
        if _times is not None:
            _times.forward()


def _ddp_forward_done(module: Any, args: object, output: object) -> None:
    if _compiling():
        return
    probe.operation("")
    if _times is not None:
        _times.forward_done()
    slot = _groups.slot(group) if _groups is not None and (group := getattr(module, "process_group", None)) else 0
    for tensor in _tensors(output):
        if tensor.requires_grad:
            tensor.register_hook(functools.partial(_ddp_backward, slot))
            return


def _ddp_backward(slot: int, gradient: object) -> None:
    """`slot`: of the group in which the module reduces its gradients. On a GPU a thread of autograd's calls this."""
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        probe.operation(torch_spans.BACKWARD)
    elif _is_of_engine(thread):
        probe.place(torch_spans.BACKWARD)
    if _times is not None:
        _times.backward(slot)


def _is_of_engine(thread: int) -> bool:
    """Whether it was started in C++: it works for the thread that waits in `backward`."""
    known = threading._active.get(thread)  # type: ignore[attr-defined]  # `enumerate` would make it an object, and lock
    return known is None or isinstance(known, threading._DummyThread)


def _compiling() -> bool:
    return bool(sys.modules["torch"].compiler.is_compiling())


def _tensors(output: object) -> Iterable[Any]:
    """The tensors of a model's output, however it packs them, three levels deep at most."""
    kind = sys.modules["torch"].Tensor
    level: list[object] = [output]
    for _ in range(3):
        below: list[object] = []
        for item in level:
            if isinstance(item, kind):
                yield item
            elif isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list | tuple):
                below += item
        level = below
