"""What imports take is summed up once, however they are nested, in virtual time."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.hooks import import_times
from holdfast.agent.hooks.import_times import ImportTimes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportTimes]:
    """Modules of a second each: `outer` imports `inner`, and `outer.late` comes later, as in lazy packages."""
    clock = Clock()
    monkeypatch.setattr(sys, "holdfast_clock", clock, raising=False)
    second = "import sys\nsys.holdfast_clock.now += 1.0\n"
    (tmp_path / "outer_mod").mkdir()
    (tmp_path / "outer_mod" / "__init__.py").write_text(f"{second}import inner_mod\n")
    (tmp_path / "outer_mod" / "late.py").write_text(second)
    (tmp_path / "inner_mod.py").write_text(second)
    (tmp_path / "broken_mod.py").write_text(f"{second}1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_times, "FRAMEWORKS", ("inner_mod", "json", "absent_mod"))
    one = ImportTimes(clock)
    sys.meta_path.insert(0, one)
    yield one
    sys.meta_path.remove(one)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("outer_mod", "inner_mod")]:
        del sys.modules[name]


def test_nested_imports_count_once(times: ImportTimes) -> None:
    import outer_mod  # type: ignore[import-not-found]

    assert times.seconds == 2.0
    import outer_mod.late  # type: ignore[import-not-found]

    assert times.seconds == 3.0
    assert outer_mod.__spec__.loader.exec_module.__name__ == "exec_module"
    assert times.frameworks() == ["inner_mod"]  # json was there before


def test_an_import_that_fails_counts_and_raises_as_ever(times: ImportTimes) -> None:
    with pytest.raises(ZeroDivisionError):
        import broken_mod  # type: ignore[import-not-found]  # noqa: F401
    assert times.seconds == 1.0
    with pytest.raises(ModuleNotFoundError):
        import no_such_mod  # type: ignore[import-not-found]  # noqa: F401
    import inner_mod  # type: ignore[import-not-found]  # noqa: F401

    assert times.seconds == 2.0


def test_what_another_thread_imports_delays_no_step(times: ImportTimes) -> None:
    thread = threading.Thread(target=lambda: __import__("inner_mod"))
    thread.start()
    thread.join()
    assert "inner_mod" in sys.modules
    assert times.seconds == 0.0


def test_the_first_step_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[float, list[str]]] = []
    monkeypatch.setattr(import_times.side_files, "leave_imports", lambda seconds, names: left.append((seconds, names)))
    before = list(sys.meta_path)
    import_times.watch()
    assert len(sys.meta_path) == len(before) + 1
    for _ in range(2):
        import_times.first_step()
    assert sys.meta_path == before
    assert left == [(0.0, [])]
