"""Detection of sleep mode in a job's vLLM engine, with upstream's own classes and in its source."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testing.interpreter import python

KEEP = "actor_rollout_ref.rollout.free_cache_engine=False"
ENGINE = f"{KEEP} +actor_rollout_ref.rollout.enable_sleep_mode=False"
ARGUMENT = f"{KEEP} +actor_rollout_ref.rollout.engine_kwargs.vllm.enable_sleep_mode=False"

SYNC, ASYNC = {"mode": "sync", "free_cache_engine": True}, {"mode": "async", "free_cache_engine": True}
NEVER_SLEEPS = {"engine_kwargs": {"vllm": {"enable_sleep_mode": False}}}

CASES = {
    "796871d7": [
        (SYNC, KEEP),
        (ASYNC, KEEP),
        ({**SYNC, "free_cache_engine": False}, ""),
        ({**ASYNC, "free_cache_engine": False}, ""),
        # Its server does not read the arguments.
        ({**ASYNC, **NEVER_SLEEPS}, KEEP),
    ],
    "v0.6.1": [
        (SYNC, KEEP),
        ({**SYNC, "free_cache_engine": False}, ""),
        (ASYNC, ARGUMENT),
        # Its server sleeps whatever free_cache_engine says.
        ({**ASYNC, "free_cache_engine": False}, ARGUMENT),
        ({**ASYNC, **NEVER_SLEEPS}, ""),
    ],
    "ccd7d934": [
        (ASYNC, ENGINE),
        ({**ASYNC, "free_cache_engine": False}, ENGINE),
        ({**ASYNC, "enable_sleep_mode": False}, ""),
        ({**ASYNC, **NEVER_SLEEPS}, ""),
        ({**ASYNC, "enable_sleep_mode": False, "engine_kwargs": {"vllm": {"enable_sleep_mode": True}}}, ENGINE),
        # Upstream has no engine of this mode any more; a recipe has it.
        (SYNC, ""),
    ],
    "v0.7.1": [(ASYNC, ENGINE), ({**ASYNC, "enable_sleep_mode": False}, ""), ({**ASYNC, **NEVER_SLEEPS}, "")],
}

PROGRAM = """
import json, sys
from omegaconf import OmegaConf
from verl_npu.features.rollout.rules import sleep_mode_overrides as remedy
from verl.workers.rollout import base
cases = [OmegaConf.create(case) for case in json.loads(sys.argv[1])]
found = [remedy(case) for case in cases]
if hasattr(base, "_ROLLOUT_REGISTRY"):
    # As the recipe r1_ascend does it: of its engine nothing is known.
    base._ROLLOUT_REGISTRY["vllm", "sync"] = "recipe.r1_ascend.vllm_rollout_spmd.vLLMRollout"
    found.append(remedy(OmegaConf.create({"mode": "sync", "free_cache_engine": True})))
print("REMEDIES " + json.dumps(found))
"""

Tree = Callable[[str], Path]
NIGHTLY = pytest.mark.nightly("verl_npu/features/rollout/rules.py", "pin.json")


@pytest.mark.upstream
@pytest.mark.parametrize("pin", [pytest.param(pin, marks=() if pin == "v0.6.1" else NIGHTLY) for pin in CASES])
def test_the_setting_that_decides_at_each_pin(pin: str, importable: Tree) -> None:
    for package in ("verl", "omegaconf"):
        pytest.importorskip(package)
    cases = json.dumps([case for case, _ in CASES[pin]])
    done = python("-c", PROGRAM, cases, paths=[importable(pin)], clean="VERL_NPU", seconds=300, VERL_NPU="off")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("REMEDIES ")[2])
    asked = [expected for _, expected in CASES[pin]]
    assert found[: len(asked)] == asked
    assert set(found[len(asked) :]) <= {""}


def given(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each expression that a file passes as enable_sleep_mode, and whether engine_kwargs follow it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "enable_sleep_mode":
                    spread = [ast.unparse(other.value) for other in node.keywords if other.arg is None]
                    yield ast.unparse(keyword.value), "engine_kwargs" in spread
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "enable_sleep_mode":
                    spread = [ast.unparse(v) for k, v in zip(node.keys, node.values, strict=True) if k is None]
                    yield ast.unparse(value), "engine_kwargs" in spread


SOURCES = {
    "796871d7": {
        "vllm_rollout_spmd.py": [("config.free_cache_engine", True)],
        "vllm_async_server.py": [("config.free_cache_engine", False)],
    },
    "v0.6.1": {
        "vllm_rollout_spmd.py": [("config.free_cache_engine", True)],
        "vllm_async_server.py": [("True", True)],
    },
    "ccd7d934": {"vllm_async_server.py": [("self.config.enable_sleep_mode", True)]},
    "v0.7.1": {"vllm_async_server.py": [("self.config.enable_sleep_mode", True)]},
    "v0.9.1": {"vllm_async_server.py": [("self.config.enable_sleep_mode", True)]},
}


@pytest.mark.parametrize("pin", SOURCES)
def test_what_upstream_gives_its_engines_is_what_the_table_says(pin: str, importable: Tree) -> None:
    folder = importable(pin) / "verl/workers/rollout/vllm_rollout"
    found = {path.name: list(given(path)) for path in sorted(folder.glob("*.py"))}
    assert {name: expressions for name, expressions in found.items() if expressions} == SOURCES[pin]
