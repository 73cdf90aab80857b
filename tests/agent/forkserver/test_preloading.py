"""Modules of a job that a fork server imports: once, and none that a forked worker would suffer from."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.agent.forkserver import preloading
from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.preloading import MADE_A_GROUP, STARTED_THREADS
from tests.agent.support.warm_node import Node, node

THREADS = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
GROUP = "import sys, types\nsys.modules['torch.distributed'] = types.SimpleNamespace(is_initialized=lambda: True)\n"


async def reopen(one: Node, *wanted: str) -> None:
    """The node's fork server again, as that of a job."""
    assert one.warm
    await one.warm.shutdown()
    one.warm = await ForkServer.open(
        one.folder / "run", wanted=wanted, folder=str(one.folder / "mine"), env=os.environ, on_exit=one.heard
    )


def module(folder: Path, name: str, text: str = "") -> None:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / f"{name}.py").write_text(text)


def test_modules_that_no_worker_could_be_forked_after_are_left_out(tmp_path: Path) -> None:
    for name, text in (("threaded", THREADS), ("grouped", GROUP), ("broken", "1 / 0"), ("fine", "")):
        module(tmp_path, name, text)

    async def story() -> None:
        async with node(tmp_path) as one:
            await reopen(one, "threaded", "grouped", "broken", "fine")
            assert one.warm
            assert one.warm.missing == ()
            assert one.warm.preload_errors == {
                "threaded": STARTED_THREADS,
                "grouped": MADE_A_GROUP,
                "broken": "ZeroDivisionError: division by zero",
            }
            names = "{'threaded', 'grouped', 'broken', 'fine'}"
            await one.start(f"import sys\nprint({names} & set(sys.modules))")
            await one.ended()
            assert one.out() == "{'fine'}\n"

    asyncio.run(story())


def test_the_folder_is_on_the_path_for_the_imports_alone(tmp_path: Path) -> None:
    module(tmp_path, "fine")

    async def story() -> None:
        async with node(tmp_path) as one:
            await reopen(one, "fine")
            await one.start("import sys\nprint('fine' in sys.modules, [p for p in sys.path if p.endswith('/mine')])")
            await one.ended()
            assert one.out() == "True []\n"

    asyncio.run(story())


def never(left_out: object) -> None:
    raise AssertionError(left_out)


def test_nothing_is_imported_if_a_module_of_the_job_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "loud_one", "raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    done = preloading.preload(["loud_one"], ["loud_one", "no_such_thing", "no_such_package.part"], {}, never)
    assert (done.missing, done.errors) == (["no_such_thing", "no_such_package.part"], {})


def test_a_part_that_a_package_lacks_is_missing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, "wants_other", "import no_such_thing")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    done = preloading.preload([], ["json.no_such_part", "wants_other"], {}, never)
    assert done.missing == ["json.no_such_part"]
    assert set(done.errors) == {"json.no_such_part", "wants_other"}  # what the second wants is its own affair


def test_only_the_agents_modules_have_their_hook_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("of_agent", "of_job"):
        module(tmp_path, name, "called = []\ndef preload(): called.append(1)")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    preloading.preload(["of_agent"], ["of_agent", "of_job"], {}, never)
    import of_agent  # type: ignore[import-not-found]
    import of_job  # type: ignore[import-not-found]

    assert (of_agent.called, of_job.called) == ([1], [])


def test_reasons_go_along_to_a_new_start() -> None:
    left_out = {"a.b": "threads", "c": "gpus"}
    assert preloading.from_text(preloading.to_text(left_out)) == left_out
    assert preloading.from_text("") == {}
