from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
import zipfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from testing.interpreter import python

from verl_npu.registry.apply import hooks
from verl_npu.registry.apply.hooks import add_hook, remove_hook

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_other_hooks(monkeypatch) -> None:
    """Hide hooks that earlier tests of this process left, for example by installing a feature."""
    monkeypatch.setattr(hooks, "_before", {})
    monkeypatch.setattr(hooks, "_after", {})
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not hooks._finder])


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def hook(seen: list[str]):
    def note(module: ModuleType) -> None:
        seen.append(f"{module.__name__} done={hasattr(module, 'DONE')}")

    yield note
    for name in ("up", "up.ops"):
        remove_hook(name, note)


def test_a_before_hook_runs_before_the_module_is_executed(package, hook, seen) -> None:
    package.write("up.ops", "DONE = 1\n")
    add_hook("up.ops", hook, before=True)
    package.load("up.ops")
    remove_hook("up.ops", hook)
    assert seen == ["up.ops done=False"]


def test_it_runs_at_once_for_a_module_that_is_there(package, hook, seen) -> None:
    package.write("up.ops", "DONE = 1\n")
    package.load("up.ops")
    add_hook("up.ops", hook)
    assert seen == ["up.ops done=True"]


def test_it_waits_for_a_module_that_is_half_initialised(package, hook, seen, monkeypatch) -> None:
    package.write("up.ops", "import user_adds\nseen_inside = list(user_adds.seen)\nDONE = 1\n")
    adds = ModuleType("user_adds")
    monkeypatch.setitem(sys.modules, "user_adds", adds)
    adds.seen = seen

    class Adding(ModuleType):
        @property
        def seen(self) -> list[str]:
            add_hook("up.ops", hook)
            return seen

    adds.__class__ = Adding
    del adds.__dict__["seen"]
    module = package.load("up.ops")
    assert module.seen_inside == []
    assert seen == ["up.ops done=True"]


def test_it_does_not_run_for_a_module_whose_execution_failed(package, hook, seen) -> None:
    package.write("up.ops", "raise OSError('broken upstream')\n")
    add_hook("up.ops", hook)
    with pytest.raises(OSError, match="broken upstream"):
        package.load("up.ops")
    assert seen == []


def test_it_runs_again_on_reload(package, hook, seen) -> None:
    package.write("up.ops", "DONE = 1\n")
    add_hook("up.ops", hook)
    importlib.reload(package.load("up.ops"))
    assert seen == ["up.ops done=True"] * 2


def test_a_hook_that_fails_fails_every_import(package) -> None:
    package.write("up.ops", "")

    def fails(module: ModuleType) -> None:
        raise LookupError("the hook failed")

    add_hook("up.ops", fails)
    try:
        for _ in range(2):
            with pytest.raises(LookupError, match="the hook failed"):
                package.load("up.ops")
    finally:
        remove_hook("up.ops", fails)


def test_a_removed_hook_does_not_run_and_takes_the_finder_along(package, hook, seen) -> None:
    package.write("up.ops", "")
    finders = list(sys.meta_path)
    add_hook("up.ops", hook)
    assert sys.meta_path != finders
    remove_hook("up.ops", hook)
    package.load("up.ops")
    assert seen == []
    assert sys.meta_path == finders


def test_the_loader_keeps_its_type_and_its_source(package, hook) -> None:
    package.write("up.ops", "DONE = 1\n")
    plain = type(package.load("up").__loader__)
    add_hook("up.ops", hook)
    loader = package.load("up.ops").__spec__.loader
    assert type(loader) is plain
    assert loader.get_source("up.ops") == "DONE = 1\n"


def test_32_threads_that_import_at_once_see_it_run_once(package, hook, seen) -> None:
    package.write("up.ops", "import time\ntime.sleep(0.05)\nDONE = 1\n")
    add_hook("up.ops", hook)
    barrier = threading.Barrier(32)

    def load() -> None:
        barrier.wait()
        package.load("up.ops")

    threads = [threading.Thread(target=load) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["up.ops done=True"]


def test_a_module_that_puts_another_in_its_place_is_hooked_as_that_other(package, hook, seen) -> None:
    package.write(
        "up.ops",
        """
        import sys, types
        other = types.ModuleType("up.ops.lazy")
        other.DONE = 1
        sys.modules[__name__] = other
        """,
    )
    add_hook("up.ops", hook)
    package.load("up.ops")
    assert seen == ["up.ops.lazy done=True"]


def test_wrapts_hook_on_the_same_module_runs_beside_ours_in_either_order(package, hook, seen) -> None:
    wrapt = pytest.importorskip("wrapt")
    package.write("up.first", "DONE = 1\n")
    package.write("up.second", "DONE = 1\n")
    wraptss: list[str] = []
    wrapt.register_post_import_hook(lambda module: wraptss.append(module.__name__), "up.first")
    add_hook("up.first", hook)
    add_hook("up.second", hook)
    wrapt.register_post_import_hook(lambda module: wraptss.append(module.__name__), "up.second")
    modules = [package.load("up.first"), package.load("up.second")]
    for name in ("up.first", "up.second"):
        remove_hook(name, hook)
    assert seen == ["up.first done=True", "up.second done=True"]
    assert wraptss == ["up.first", "up.second"]
    assert [type(module.__spec__.loader) for module in modules] == [SourceFileLoader] * 2


def test_a_finder_that_was_put_first_later_does_not_hide_a_module(package, hook, seen, monkeypatch) -> None:
    package.write("up.ops", "DONE = 1\n")
    package.write("up.other", "")
    add_hook("up.ops", hook)

    class Greedy:
        def find_spec(self, fullname, path, target=None):
            return PathFinder.find_spec(fullname, path) if fullname == "up.ops" else None

    monkeypatch.setattr(sys, "meta_path", [Greedy(), *sys.meta_path])
    package.load("up.other")
    package.load("up.ops")
    assert seen == ["up.ops done=True"]


def test_a_loader_that_serves_many_modules_runs_the_hook_for_its_own_alone(package, hook, seen, tmp_path) -> None:
    archive = tmp_path / "zipped.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("user_one.py", "DONE = 1\n")
        made.writestr("user_two.py", "DONE = 1\n")
    sys.path.insert(0, str(archive))
    add_hook("user_one", hook)
    try:
        for _ in range(2000):
            importlib.util.find_spec("user_one")
        package.load("user_one")
        package.load("user_two")
    finally:
        sys.path.remove(str(archive))
        remove_hook("user_one", hook)
    assert seen == ["user_one done=True"]


def test_a_loader_of_the_old_kind_is_hooked(package, hook, seen, monkeypatch) -> None:
    class Old:
        def load_module(self, name):
            module = sys.modules[name] = ModuleType(name)
            module.DONE = 1
            return module

    class Finder:
        def find_spec(self, fullname, path, target=None):
            return ModuleSpec(fullname, Old()) if fullname == "user_old" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    add_hook("user_old", hook)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package.load("user_old")
    finally:
        remove_hook("user_old", hook)
    assert seen == ["user_old done=True"]


def test_a_module_that_renames_itself_is_hooked_by_the_name_that_is_imported(package, hook, seen) -> None:
    package.write("up.ops", "__name__ = 'elsewhere'\nDONE = 1\n")
    add_hook("up.ops", hook)
    package.load("up.ops")
    assert seen == ["elsewhere done=True"]


def test_what_a_hook_raises_for_a_half_initialised_module_every_import_raises(package, monkeypatch) -> None:
    adds = ModuleType("user_adds")
    monkeypatch.setitem(sys.modules, "user_adds", adds)

    def failing(module: ModuleType) -> None:
        raise OSError("refused")

    adds.add = lambda: add_hook("up.ops", failing)
    package.write("up.ops", "import user_adds\nuser_adds.add()\n")
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="refused"):
                package.load("up.ops")
    finally:
        for _ in range(2):
            remove_hook("up.ops", failing)


def test_a_program_started_by_dash_m_runs_its_hooks_before_it_starts(package, tmp_path) -> None:
    package.write(
        "up",
        """
        from verl_npu.registry.apply.hooks import add_hook

        def hook(module):
            module.word = f"hooked {module.__name__}"

        add_hook("up.job", hook)
        """,
    )
    package.write("up.job", "word = 'upstream'\nif __name__ == '__main__':\n    print(word)\n")
    result = python("-m", "up.job", paths=[package.root, PROJECT], VERL_NPU="off")
    assert result.stdout == "hooked __main__\n", result.stderr
