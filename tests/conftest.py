"""What every test may use, and the guard that none leaves a process behind."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

from holdfast.agent.forkserver.fork_from import VARIABLE
from holdfast.cli.local import ports
from holdfast.trainer.determinism import fix_products
from tests.checkpoint.support.hdfs_cluster import HdfsCluster, Unavailable
from tests.fork_source import fork_source

Until = Callable[..., None]

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    # Before torch and numpy are imported, here and in processes that tests start. Tensors of tests are small, and other
    # runs have the processors too: threads that spin until their peers come took three quarters of the time.
    os.environ.setdefault(name, "1")
fix_products()  # before the first product: tests compare bits of this process with those of the trainer's

# Before test modules are imported: their own settings begin with these. Of each example Hypothesis measures wall time,
# which other runs on this machine make as long as they please. The parent is what was loaded before (.ci/mutants.py).
settings.register_profile("shared", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Under `nohup`, or `&` in a script: what tests start would ignore Ctrl-C as well, and never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under `nohup`, too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

gc.disable()  # until all tests are imported: collections, which find next to nothing, took a third of that time


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is there now stays: no later collection looks at it, and forked processes do not copy it
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` finds the files of its slow runs by the words `mark.slow`, `mark.aside`, `mark.calm`: a slow test
    elsewhere would never run."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    for marker in ("slow", "aside", "calm"):
        marked = {item.path for item in slow if item.get_closest_marker(marker)}
        unseen = sorted(str(path) for path in marked if f"mark.{marker}" not in path.read_text())
        if unseen:
            raise pytest.UsageError(f"{marker} tests in files that do not say mark.{marker}: {', '.join(unseen)}")


@pytest.fixture
def free_port() -> int:
    """A port on which nothing listens."""
    return ports.free_port()


@pytest.fixture
def until() -> Until:
    """`until(predicate, timeout)` polls and fails with `says` when the time is over."""

    def wait(predicate: Callable[[], object], timeout: float = 90.0, says: str = "") -> None:
        deadline = time.monotonic() + timeout
        while not predicate():
            assert time.monotonic() < deadline, says or f"not so within {timeout:g} s"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def one_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A real HDFS, a NameNode and two DataNodes, for all tests of a session. See `hdfs`."""
    pytest.importorskip("hdfs_native", reason="the extra holdfast[hdfs] is not installed")
    try:
        cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"no HDFS to test with: {error}")
        pytest.skip(f"no HDFS on this machine: {error}")
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def hdfs(one_hdfs: HdfsCluster) -> Iterator[HdfsCluster]:
    """The shared HDFS, running for the tests of a module, which leave it intact."""
    with one_hdfs.awake():
        yield one_hdfs


PROCESS_LEFT = pytest.StashKey[bool]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(PROCESS_LEFT, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # no test's failure, which running it again would cure


@pytest.fixture(autouse=True, scope="session")
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a child behind would let the next run trip over it."""
    yield
    deadline = time.monotonic() + 20.0  # some are still ending, on a busy machine
    while (left := _children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    named = [f"{child.pid}: {_command(child)}" for child in left]
    for child in left:
        child.kill()
    request.config.stash[PROCESS_LEFT] = bool(named)
    assert not named, f"processes left behind by a test: {named}"


@pytest.fixture(autouse=True, scope="session")
def shared_imports(
    request: pytest.FixtureRequest, no_process_left: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Agents that tests start have their fork servers forked from one that they share, unless HOLDFAST_FORK_FROM says
    otherwise. Started when the first asks."""
    if VARIABLE in os.environ or not any(item.get_closest_marker("slow") for item in request.session.items):
        yield
        return
    folder = str(tmp_path_factory.mktemp("fork_source"))
    with fork_source(folder):
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def _children() -> list[psutil.Process]:
    alive = [c for c in psutil.Process().children(recursive=True) if _status(c) != psutil.STATUS_ZOMBIE]
    # Python's own helper of multiprocessing stays until the interpreter ends.
    return [child for child in alive if "resource_tracker" not in _command(child)]


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"
