from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType

import pytest

from verl_npu.registry.apply.hooks import add_hook, remove_hook


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


def test_it_runs_after_the_module_is_executed(package, hook, seen) -> None:
    package.write("up.ops", "DONE = 1\n")
    add_hook("up.ops", hook)
    assert seen == []
    package.load("up.ops")
    assert seen == ["up.ops done=True"]


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
