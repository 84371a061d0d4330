from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Steps = Mapping[int, Mapping[str, float]]
Write = Callable[..., Path]


def line(step: int, metrics: Mapping[str, float]) -> str:
    """Return a line of verl's console logger, as Ray forwards it."""
    parts = " - ".join([f"step:{step}", *(f"{name}:{value!r}" for name, value in metrics.items())])
    return f"\x1b[36m(TaskRunner pid=12)\x1b[0m {parts}\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a log, from steps or from text, and returns its path."""

    def make(content: Steps | str, name: str = "train.log") -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str) else "".join(line(step, each) for step, each in content.items())
        path.write_text(text)
        return path

    return make
