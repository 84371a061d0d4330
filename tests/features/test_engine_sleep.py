"""Plain tensors of an engine that sleeps deeply, on a virtual NPU, with a stand-in for vllm-ascend's allocator."""

from __future__ import annotations

import json

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.virtual
NIGHTLY = pytest.mark.nightly("verl_npu/features/engine_sleep.py")

PROGRAM = """
import gc, json, sys, types, torch, torch_npu
from verl_npu.features.engine_sleep import (
    _names, changed_since_wake_up, forget_wake_up, keep_plain_tensors, restore_plain_tensors, unprotected
)

class Allocation:
    def __init__(self, tensor, tag): self.handle, self.tag = (0, tensor.untyped_storage().nbytes()), tag

class CaMemAllocator:
    def __init__(self, **tensors):
        self.mapped, self.pointer_to_data = True, {}
        for name, tensor in tensors.items():
            self.pointer_to_data[tensor.untyped_storage().data_ptr()] = Allocation(tensor, name.partition("_")[0])

class Dispatcher:
    def __init__(self):
        self.experts = torch.arange(4, dtype=torch.int32, device="npu")
        self.scales = [each.detach() for each in torch.ones(4, device="npu").split(3)]
        self.scales.append(torch.nn.Parameter(torch.ones(2, device="npu")))

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, device="npu"), requires_grad=False)
        self.dispatcher = Dispatcher()
        with torch.inference_mode():
            self.mask = torch.ones(2, 2, device="npu")
        self.cache = torch.ones(5, device="npu")
        self.outside = torch.ones(6, device="npu")

layer = Layer()
held, twin = layer.dispatcher, Dispatcher()
plain = [held.experts, layer.mask, layer.weight.data]
allocator = CaMemAllocator(
    weights_a=held.experts,
    weights_b=layer.mask,
    weights_c=layer.weight,
    weights_d=held.scales[0],
    weights_e=held.scales[2],
    weights_f=twin.experts,
    kv_cache=layer.cache,
)
sys.modules["vllm_ascend.device_allocator.camem"] = module = types.ModuleType("camem")
module.CaMemAllocator = CaMemAllocator
CaMemAllocator.instance = allocator

@torch.inference_mode()
def sleep(allocator, tags):
    if not allocator.mapped: raise SystemExit("it was read while it slept")
    allocator.mapped = False
    for tensor in (held.experts, layer.mask, layer.weight, *held.scales, layer.cache, layer.outside, twin.experts):
        tensor.fill_(-7)

def wake_up(allocator, tags):
    allocator.mapped = True

FROZEN
keep_plain_tensors(sleep, allocator, TAGS)
for tags in WAKE:
    restore_plain_tensors(wake_up, allocator, tags)
kept = [each.memory for each in getattr(allocator, "_verl_npu_restored", ())]
names = _names(kept) if kept else []
tensors = [held.experts, layer.mask.flatten(), layer.weight, layer.cache, *held.scales]
values = [each.tolist() for each in tensors]
unchanged = changed_since_wake_up()
held.experts[0] = 9
changed = [*changed_since_wake_up()]
twin.experts[0] = 9
both = changed_since_wake_up()
held.experts[0] = 0
one = changed_since_wake_up()
same = [[*both] == sorted(both), [name for name in both if name not in one] == changed]
forget_wake_up()
forgotten = [*changed_since_wake_up()]
frozen = gc.get_freeze_count() > 0
type(allocator).sleep = lambda allocator, tags: None
said = [sorted(names), values, [*unchanged], changed, forgotten, sorted(unprotected()), same, frozen]
print("SAID " + json.dumps(said))
"""
LOST = [[-7] * 4, [-7] * 4, [-7] * 3, [-7] * 5, [-7] * 3, [-7], [-7] * 2]
BACK = [[0, 1, 2, 3], [1, 1, 1, 1], [-7] * 3, [-7] * 5, [1] * 3, [1], [1] * 2]
NAMES = ["Dispatcher.experts", "Dispatcher.experts (2)", "Layer.mask", "a tensor of 16 bytes", "a tensor of 8 bytes"]


def said(python: Run, tags: str = "()", wake: str = '[["weights"], ["kv_cache"]]', frozen: str = "") -> list[object]:
    program = PROGRAM.replace("TAGS", tags).replace("WAKE", wake).replace("FROZEN", frozen)
    done = python(program)
    assert done.returncode == 0, done.stderr
    return list(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("SAID "))[5:]))


def test_they_come_back_and_parameters_and_caches_do_not(python: Run) -> None:
    assert said(python)[:2] == [NAMES, BACK]


@NIGHTLY
def test_they_come_back_where_everything_wakes_up_at_once(python: Run) -> None:
    assert said(python, wake="[None]")[:2] == [NAMES, BACK]


@NIGHTLY
def test_they_stay_away_as_long_as_the_weights_sleep(python: Run) -> None:
    assert said(python, wake='[["kv_cache"]]')[:2] == [[], LOST]


@NIGHTLY
def test_nothing_is_copied_if_the_engine_keeps_its_weights_itself(python: Run) -> None:
    assert said(python, tags='("weights",)')[:2] == [[], LOST]


def test_they_are_found_among_frozen_objects_which_stay_frozen(python: Run) -> None:
    names, values, *_, frozen = said(python, frozen="gc.collect(); gc.freeze()")
    assert (names, values, frozen) == (NAMES, BACK, True)


def test_one_that_changes_after_the_wake_up_is_named_until_the_engine_computes(python: Run) -> None:
    assert said(python)[2:5] == [[], ["Dispatcher.experts"], []]


def test_they_are_named_where_nothing_keeps_them(python: Run) -> None:
    assert said(python)[5] == [name for name in NAMES if "(2)" not in name]


def test_two_of_one_name_keep_their_names_if_one_is_repaired(python: Run) -> None:
    assert said(python)[6] == [True, True]
