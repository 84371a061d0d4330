"""Upstream's workers can be imported in processes that see no NPU, with the real transformers and verl."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from testing.interpreter import Interpreter
from testing.programs import ACTOR, path_with

pytestmark = [pytest.mark.upstream, pytest.mark.virtual]


@pytest.mark.parametrize("version", ["4.52.4", "4.53.3", "4.54.1"])
def test_the_actor_is_imported_where_ray_hides_all_npus(
    interpreter: Interpreter, source: Callable[[str, str], Path], importable: Callable[[str], Path], version: str
) -> None:
    pytest.importorskip("verl")
    path = path_with(interpreter.site, source("transformers", version), importable("796871d7"))
    result = interpreter.run(ACTOR, PYTHONPATH=path, VIRTUAL_ASCEND="2", ASCEND_RT_VISIBLE_DEVICES="")
    assert result.out.splitlines() == [f"{version} 0 applied", "[[0, 1, 2], [3, 4, 5]]"], result.err
