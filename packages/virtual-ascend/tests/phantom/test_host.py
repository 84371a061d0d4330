"""Phantoms on the host: a large host tensor takes no memory, and no operator computes it."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

# 1 MiB is the limit; `x` has 4 GiB.
PROGRAM = """
import json, resource, torch, torch_npu
from virtual_ascend import ledger
from virtual_ascend.device.extension import extension
is_phantom = extension().is_phantom
before = torch.empty(1 << 20)
ledger.start(1.0, 1.0)
def raised(call):
    try: return str(call())
    except Exception as error: return f"{type(error).__name__}: {error}"
def held(): return sum(block.size for block in ledger.blocks() if block.holder == 3 and not block.freed)
x = torch.randn(1 << 30)
one = held()
out = {"before": is_phantom(before), "made": is_phantom(x), "held": one}
pinned = x.pin_memory()
out["phantoms"] = {"result": is_phantom(x * 2 + 1), "view": is_phantom(x[5:7]), "in place": is_phantom(x.add_(1).sqrt_()), "to the NPU": is_phantom(x.npu()), "back": is_phantom(x.npu().cpu()), "pinned": is_phantom(pinned), "made pinned": is_phantom(torch.empty(1 << 20, pin_memory=True)), "out": is_phantom(torch.add(x, 1, out=torch.empty(0)))}
out["pinned"] = [pinned[3:].is_pinned(), x.is_pinned()]
out["read"] = [x[:3].tolist(), x.sum().item(), x[:1 << 20].nonzero().shape[0], (x * 1).numpy()[7].item()]
out["copied"] = torch.ones(2).copy_(x[:2]).tolist()
out["real"] = [is_phantom(torch.empty(1 << 17)), is_phantom(torch.zeros(1 << 20, dtype=torch.long)), is_phantom(torch.zeros(1 << 22, dtype=torch.uint8))]
out["wrong"] = {"shapes": raised(lambda: x + torch.ones(5)), "in place": raised(lambda: x.view(1 << 15, -1).add_(torch.ones(3))), "devices": raised(lambda: x.npu() + x)}
layer = torch.nn.Linear(1 << 14, 1 << 14)
for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    optimizer = torch.optim.AdamW(layer.parameters(), **how)
    for weight in layer.parameters(): weight.grad = torch.ones_like(weight)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    out[str(how)] = is_phantom(optimizer.state[layer.weight]["exp_avg_sq"])
layer.weight.data = layer.weight.data.npu()
out["moved"] = [str(layer.weight.device), is_phantom(layer.weight)]
del optimizer, layer, pinned
x.untyped_storage().resize_(0)
out["freed"] = held()
x.untyped_storage().resize_(4 << 30)
out["grown"] = [held(), is_phantom(x)]
out["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(python: Run) -> dict[str, Any]:
    done = python(PROGRAM, VIRTUAL_ASCEND_PHANTOM="1", VIRTUAL_ASCEND_MEMORY="1024")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_large_host_tensors_are_phantoms_once_the_ledger_has_started(seen: dict[str, Any]) -> None:
    assert (seen["before"], seen["made"], seen["held"]) == (False, True, 4 << 30)
    assert set(seen["phantoms"].values()) == {True}, seen["phantoms"]


def test_small_tensors_and_whole_numbers_are_real(seen: dict[str, Any]) -> None:
    assert seen["real"] == [False, False, False]


def test_they_read_as_zeros(seen: dict[str, Any]) -> None:
    assert seen["read"] == [[0, 0, 0], 0, 0, 0]
    assert seen["copied"] == [0, 0]


def test_pinned_ones_are_pinned(seen: dict[str, Any]) -> None:
    assert seen["pinned"] == [True, False]


def test_wrong_shapes_and_devices_are_errors(seen: dict[str, Any]) -> None:
    assert "must match the size of tensor b (5)" in seen["wrong"]["shapes"]
    assert "must match the size of tensor b (3)" in seen["wrong"]["in place"]
    assert "found at least two devices, npu:0 and cpu" in seen["wrong"]["devices"]


@pytest.mark.parametrize("how", ["{'foreach': False}", "{'foreach': True}", "{'fused': True}"])
def test_an_optimizer_makes_its_state_of_them(seen: dict[str, Any], how: str) -> None:
    assert seen[how] is True


def test_a_parameter_moves_to_the_npu(seen: dict[str, Any]) -> None:
    assert seen["moved"] == ["npu:0", True]


def test_a_storage_is_freed_and_grown_again(seen: dict[str, Any]) -> None:
    assert seen["freed"] == 0
    assert seen["grown"] == [4 << 30, True]


def test_they_take_no_memory(seen: dict[str, Any]) -> None:
    assert seen["resident"] < 1024
