"""Each way in that docs/install.md names, on real sources of verl: it activates once and reports its origin."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from testing.interpreter import SHOW, Interpreter, Result

from verl_npu.activation import PLAIN
from verl_npu.pins import pins
from verl_npu.version import __version__

# The line that docs/install.md gives for verl/__init__.py, and the line that Ascend's documents put at its end.
HOOK = "import verl_npu\n"
ASCENDS_HOOK = "if is_npu_available:\n    import verl_npu\n"
# The parts of torch_npu that `import verl` looks at: an NPU is there, and the operators can be imported.
TORCH_NPU = """
import types, torch
torch.npu = types.SimpleNamespace(is_available=lambda: True)
npu_fusion_attention = npu_rms_norm = npu_rotary_mul = npu_swiglu = None
"""
# The parts of vLLM's plugin loader that matter here: the function's name, and that it calls what it loads.
VLLM = """
from importlib.metadata import entry_points
def load_general_plugins():
    for entry in entry_points(group='vllm.general_plugins'):
        entry.load()()
"""
ENTRY_POINT_OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
HOOK_ALONE = {**ENTRY_POINT_OFF, "VERL_USE_EXTERNAL_PLUGINS": "none"}

pytestmark = pytest.mark.upstream
# Each day runs all ways at once at one pin, and the hook line on both sides of upstream's change of its condition.
DAILY = ("796871d7", "v0.6.1")
NIGHTLY = pytest.mark.nightly("verl_npu/activation.py", "verl_npu/session.py", "pyproject.toml")


@pytest.fixture
def npu(interpreter: Interpreter) -> Interpreter:
    """Install what `import verl` looks for on a machine with an NPU."""
    if find_spec("verl") is None:
        pytest.skip("needs what verl imports")
    interpreter.package("torch_npu", TORCH_NPU)
    return interpreter


@pytest.fixture
def verl(npu: Interpreter, importable: Callable[[str], Path]) -> Callable[..., Path]:
    """Return a function that copies verl at a pin into the interpreter's site, with lines around its `__init__`."""

    def copy(pin: str, first: str = "", last: str = "") -> Path:
        made = npu.site / "verl"
        shutil.copytree(importable(pin) / "verl", made)
        text = (made / "__init__.py").read_text()
        (made / "__init__.py").write_text(f"{first}{text}\n{last}")
        return made

    return copy


def activated(result: Result, pin: str) -> str:
    """Check that verl is patched in a process that reported it once, and return its origin."""
    assert result.code == 0, result.err
    said = [line for line in result.err.splitlines() if line.startswith(f"verl-npu: {__version__}: ")]
    assert len(said) == 1, result.err
    status = result.status
    assert status["active"] is True
    assert status["upstreams"]["verl"]["nearest_pin"] == pin
    assert status["features"]["device"]["state"] == "applied"
    assert {feature["state"] for feature in status["features"].values()} <= {"applied", "pending", "native", "absent"}
    return status["origin"]


def test_the_entry_point_of_torch_needs_nothing_in_verl(npu, verl) -> None:
    verl("796871d7")
    assert activated(npu.run(f"import torch, verl; {SHOW}"), "796871d7") == "the entry point torch.backends"


@pytest.mark.parametrize("pin", [pin if pin in DAILY else pytest.param(pin, marks=NIGHTLY) for pin in pins()])
def test_the_hook_line_alone_at_the_top_of_verls_init(npu, verl, pin: str) -> None:
    verl(pin, first=HOOK)
    assert activated(npu.run(f"import verl; {SHOW}", **HOOK_ALONE), pin) == PLAIN


@NIGHTLY
def test_the_hook_line_acts_where_no_npu_is_visible(npu, verl) -> None:
    npu.package("torch_npu", TORCH_NPU.replace("lambda: True", "lambda: False"))
    verl("v0.6.1", first=HOOK)
    assert activated(npu.run(f"import verl; {SHOW}", **HOOK_ALONE), "v0.6.1") == PLAIN


def test_the_lines_of_ascends_documents_act_at_their_own_pin_and_refuse_nothing(npu, verl) -> None:
    verl("796871d7", last=ASCENDS_HOOK)
    result = npu.run(f"import verl; {SHOW}", **HOOK_ALONE)
    assert activated(result, "796871d7") == PLAIN
    assert result.status["features"]["fused_ops"]["state"] == "applied"


@pytest.mark.nightly("verl_npu/activation.py", "verl_npu/session.py", "pyproject.toml")
def test_the_lines_of_ascends_documents_never_act_alone_from_the_second_pin_on(npu, verl) -> None:
    """Upstream's condition asks whether something has imported torch_npu already, and nothing has."""
    verl("v0.6.1", last=ASCENDS_HOOK)
    result = npu.run("import sys, verl; print('verl_npu' in sys.modules)", **HOOK_ALONE)
    assert result.out == "False\n"


def test_the_hook_line_does_nothing_more_where_the_entry_point_came_first(npu, verl) -> None:
    verl("796871d7", last=ASCENDS_HOOK)
    assert activated(npu.run(f"import verl; {SHOW}"), "796871d7") == "the entry point torch.backends"


def test_a_plain_import_after_verl(npu, verl) -> None:
    verl("796871d7")
    origin = activated(npu.run(f"import verl, verl_npu; {SHOW}", **ENTRY_POINT_OFF), "796871d7")
    assert origin == PLAIN


def test_vllms_plugins(npu, verl) -> None:
    verl("796871d7")
    npu.package("vllm", VLLM)
    program = f"import verl, vllm; vllm.load_general_plugins(); {SHOW}"
    origin = activated(npu.run(program, **ENTRY_POINT_OFF), "796871d7")
    assert origin == "the entry point vllm.general_plugins"


@NIGHTLY
def test_external_modules(npu, verl) -> None:
    verl("v0.6.1")
    result = npu.run(f"import verl; {SHOW}", VERL_USE_EXTERNAL_MODULES="verl_npu", **ENTRY_POINT_OFF)
    assert activated(result, "v0.6.1") == PLAIN


def test_external_modules_are_not_read_by_the_oldest_pin(npu, verl) -> None:
    verl("796871d7")
    program = "import sys, verl; print('verl_npu' in sys.modules)"
    result = npu.run(program, VERL_USE_EXTERNAL_MODULES="verl_npu", **ENTRY_POINT_OFF)
    assert result.out == "False\n"


@NIGHTLY
def test_verls_plugins(npu, verl) -> None:
    verl("v0.9.1")
    origin = activated(npu.run(f"import verl; {SHOW}", **ENTRY_POINT_OFF), "v0.9.1")
    assert origin == "the entry point verl.plugins"


@NIGHTLY
def test_all_ways_at_once_are_one_activation(npu, verl) -> None:
    verl("v0.6.1", first=HOOK)
    npu.package("vllm", VLLM)
    program = f"import torch, verl_npu, verl, vllm; vllm.load_general_plugins(); verl_npu.activate(); {SHOW}"
    result = npu.run(program, VERL_USE_EXTERNAL_MODULES="verl_npu")
    assert activated(result, "v0.6.1") == "the entry point torch.backends"
