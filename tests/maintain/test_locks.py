"""Locks are written as a whole, and record for each patch what its own upstream decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.registry.conftest import Package, Plugin, package, plugin
from verl_npu.maintain.locks import standing
from verl_npu.registry.patch import Feature
from verl_npu.registry.source.probe import AllOf, AnyOf, Defines, Probe

__all__ = ["package", "plugin"]  # fixtures


def test_an_interruption_leaves_the_lock_that_was_there(
    package: Package, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.lock()
    (lock,) = plugin.locks.rglob("*.json")
    before = lock.read_bytes()
    write = Path.write_text

    def interrupted(self: Path, text: str) -> int:
        write(self, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plugin.lock()
    assert lock.read_bytes() == before
    assert list(lock.parent.iterdir()) == [lock]


HERE, GONE, ELSEWHERE = Defines("up.ops:run"), Defines("up.ops:gone"), Defines("other.ops:run")


@pytest.mark.parametrize(
    ("retired_by", "requires", "expected"),
    [
        (AnyOf(ELSEWHERE, HERE), HERE, "native"),
        (AllOf(ELSEWHERE, HERE), HERE, "needed"),
        (AnyOf(ELSEWHERE, GONE), AllOf(ELSEWHERE, HERE), "needed"),
        (GONE, AllOf(ELSEWHERE, GONE), "absent"),
    ],
)
def test_what_another_package_would_answer_decides_only_where_nothing_else_does(
    package: Package, retired_by: Probe, requires: Probe, expected: str
) -> None:
    package.write("up.ops", "def run(): ...")
    feature = Feature("mine", "a feature")
    feature.wrap("up.ops:run", why="a test", how="a test", link="none", retired_by=retired_by, requires=requires)(
        lambda original: original()
    )
    assert standing(*feature, package.tree()) == expected
