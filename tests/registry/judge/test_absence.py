"""Of what is gone, with the whole package that held it: where it went, or that the package is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.registry.judge.absence import Absence, Found, look
from verl_npu.registry.judge.lock import Lock, record_lock
from verl_npu.registry.patch import Feature, Upstream
from verl_npu.registry.source.probe import Mentions
from verl_npu.registry.source.tree import SourceTree

PACKAGES = ("up", "extra")
TARGET = "extra.sync.workers:Worker.start"
BODY = "        self.a = 1\n        self.b = 2\n        self.c = 3\n        return self\n"
SOURCE = f"class Worker:\n    def start(self):\n{BODY}"


def start(original: object, self: object) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write(tmp_path, "up.main", "")
    return tmp_path


def write(site: Path, module: str, source: str) -> None:
    *folders, name = module.split(".")
    folder = site
    for each in folders:
        folder = folder / each
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(source)


@pytest.fixture
def lock(site: Path, why: dict[str, str]) -> Lock:
    """Of a pin that has the target, in a package that wheels leave out."""
    feature = Feature("feature", "a feature")
    feature.wrap(TARGET, retired_by=Mentions(TARGET, "npu"), **why)(start)
    write(site, "extra.sync.workers", SOURCE)
    made = record_lock(Upstream("up", PACKAGES), "v1", "v1", SourceTree.at(site, PACKAGES), list(feature))
    (site / "extra/sync/workers.py").unlink()
    (site / "extra/sync/__init__.py").unlink()
    (site / "extra/sync").rmdir()
    (site / "extra/__init__.py").unlink()
    (site / "extra").rmdir()
    return made


def said(site: Path, lock: Lock, exact: bool = False) -> Absence:
    absence = look(TARGET, Found(lock, exact, [lock], PACKAGES), SourceTree.at(site, PACKAGES))
    assert absence is not None
    return absence


def test_a_package_that_is_left_out_is_no_loss(site: Path, lock: Lock) -> None:
    absence = said(site, lock)
    assert (absence.gone, absence.reason) == (False, "extra is not installed here")


def test_code_that_went_to_another_package_is_gone_from_its_own(site: Path, lock: Lock) -> None:
    write(site, "up.elsewhere", SOURCE)
    absence = said(site, lock)
    assert absence.gone
    assert absence.reason.endswith("the same code stands at up.elsewhere:Worker.start")


def test_changed_code_under_the_same_names_in_another_package_is_named(site: Path, lock: Lock) -> None:
    write(site, "up.sync.workers", "class Worker:\n    def start(self):\n        return 7\n")
    absence = said(site, lock)
    assert absence.gone
    assert absence.reason.endswith("of that name there is up.sync.workers:Worker.start")


def test_a_module_that_went_to_another_package_without_the_target_is_named(site: Path, lock: Lock) -> None:
    write(site, "up.sync.workers", "class Worker(Base): ...\n")
    absence = said(site, lock)
    assert absence.gone
    assert absence.reason.endswith("extra.sync.workers is up.sync.workers now, without it")


def test_at_the_pin_itself_nothing_is_looked_for(site: Path, lock: Lock) -> None:
    write(site, "up.sync.workers", SOURCE)
    assert not said(site, lock, exact=True).gone
