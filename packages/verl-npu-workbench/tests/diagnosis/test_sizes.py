"""No log hangs the diagnosis: long ones, one line, no text, colours without end, packed: the benchmark's, small."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[4] / "benchmarks" / "diagnosis.py"
SMALL = 0.2
"""Megabytes."""
MOST = 5.0
"""Seconds of processor time for less than a megabyte; it takes tenths."""


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
    taken = benchmark.measured(kind, SMALL, tmp_path)
    assert taken.said is taken.kind.expected
    assert taken.judged < MOST
