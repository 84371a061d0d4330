"""Checks models of the patched families. It compares logits, gradients, and the weights after a step: patched on an
NPU, and unpatched on the host.

If a patched model differs too much from the host, the unpatched model is computed on the NPU, too. If that model
differs as much, the cause is the NPU's own rounding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from verl_npu.ascend.variables import AUTOLOAD, VIRTUAL_NPUS
from verl_npu.environment import SWITCH

from ...processes import captured, own_python
from ..record import Wrong
from .setup import Setup, require

MODELS = ("qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_BATCHES = ("left-64-float32", "right-64-bfloat16")
_TIMES = 2.0
"""The largest allowed ratio of two distances from the host: the patched model's, divided by the unpatched model's on
the NPU."""
_UNPATCHED = "models would run without flash attention and fused operators: slower, and with more memory"
_MEANING = "logits and gradients of {model} would differ from the unpatched model's"


def run(setup: Setup) -> None:
    """Compute all cases on the NPU and on the host's processor, and add a check for each case."""
    setup.npus()
    require("transformers", "verl")
    names = _names()
    # One side uses the host's processor, the other the NPU.
    with ThreadPoolExecutor() as threads:
        waited = {side: threads.submit(_side, setup, side, names) for side in ("cpu", "npu")}
    results = {side: each.result() for side, each in waited.items()}
    setup.record.check("the features attention and fused_ops", lambda: _applied(results["npu"]["states"]), _UNPATCHED)
    for name in names:
        model = name.partition("-")[0]
        meaning = _MEANING.format(model=model)
        setup.record.check(name, partial(_compared, setup, name, results), meaning)


def _names() -> list[str]:
    from ..parity import cases

    known = {case.name for case in cases.cases()}
    wanted = [*(f"{model}-{batch}" for model in MODELS for batch in _BATCHES), "qwen3-packed-64-float32"]
    return [name for name in wanted if name in known]


def _side(setup: Setup, side: str, names: Sequence[str]) -> Mapping[str, Any]:
    """Compute one side in a separate process, and return its results. Raises RuntimeError if the process fails."""
    import torch

    path = setup.scratch / f"{side}.pt"
    environ = dict(os.environ)
    if side != "npu":
        environ[SWITCH.name] = "off"
    if side == "cpu":
        # This side must not load anything for NPUs.
        environ.pop(VIRTUAL_NPUS, None)
        environ[AUTOLOAD] = "0"
    done = captured(own_python("-m", "verl_npu_workbench.prove.parity.side", side, str(path), *names), env=environ)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(
            f"the `{side}` process exited with status {done.returncode}: {(lines or ['no output'])[-1]}"
        )
    return _loaded(torch, path)


def _loaded(torch: Any, path: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = torch.load(path, weights_only=True)
    return found


def _applied(states: Mapping[str, str]) -> str:
    wrong = {name: states.get(name, "unknown") for name in ("attention", "fused_ops")}
    if any(state != "applied" for state in wrong.values()):
        raise Wrong(", ".join(f"{name} is {state}" for name, state in wrong.items()), "both features applied")
    return "both are applied"


def _compared(setup: Setup, name: str, results: dict[str, Mapping[str, Any]]) -> str | tuple[str, dict[str, float]]:
    from ..parity.compare import distances, failures

    expected, found = (results[side]["results"][name] for side in ("cpu", "npu"))
    calls = ", ".join(sorted(found["calls"])) or "no operator of torch_npu"
    away = dict(distances(found["values"], expected["values"]))
    figures = {"largest relative distance": max(away.values())}
    wrong = failures(found, expected, name.rpartition("-")[2])
    if not wrong:
        return f"{len(away)} tensors, through {calls}", figures
    if "plain" not in results:
        results["plain"] = _side(setup, "plain", list(results["cpu"]["results"]))
    plain = dict(distances(results["plain"]["results"][name]["values"], expected["values"]))
    unexplained = [line for line in wrong if not away[_tensor(line)] <= _TIMES * plain[_tensor(line)]]
    figures["largest relative distance, unpatched on the NPU"] = max(plain.values())
    if unexplained:
        shown = "; ".join(unexplained[:3])
        raise Wrong(
            f"with the patches, {len(unexplained)} of {len(away)} tensors deviate more from the host's results than "
            f"without the patches: {shown}",
            f"each tensor's deviation from the host's results to be at most {_TIMES:g} times as large with the "
            "patches as without the patches",
            figures,
        )
    return f"tensors far from the host: {len(wrong)}, as far with the unpatched model on the NPU", figures


def _tensor(line: str) -> str:
    """Return the name of the tensor that a line of `failures` is about."""
    return line.partition(" is ")[0]
