"""No log hangs the diagnosis: long, one line, no text, endless colors, compressed; the benchmark's logs, smaller."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[4] / "benchmarks" / "diagnosis.py"
MEGABYTES = 0.2
"""The size of a log in megabytes."""
MAX_SECONDS = 5.0
"""The limit of processor time in seconds for less than a megabyte, which takes tenths of one."""


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_the_diagnosis", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


benchmark = _loaded()


@pytest.mark.parametrize("kind", benchmark.KINDS, ids=lambda kind: kind.name)
def test_a_log_of_any_kind_is_judged_in_its_time(kind: object, tmp_path: Path) -> None:
    taken = benchmark.measured(kind, MEGABYTES, tmp_path)
    assert taken.said is taken.kind.expected
    assert taken.judged < MAX_SECONDS
