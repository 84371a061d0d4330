"""Locks are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.registry.conftest import Package, Plugin, package, plugin

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
