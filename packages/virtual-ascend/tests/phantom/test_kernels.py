"""The memory that operators which are one kernel on an NPU take and keep there, with values and without.

They keep no scores of attention [S,S], and no float32 copies of a norm's input.
"""

from __future__ import annotations

import json

import pytest
from virtual_ascend.testing.fixtures import Run

ROWS, HEADS, WIDTH, HALF, SINGLE = 1024, 2, 64, 2, 4
TEMPLATE = 2048 * 2048  # the causal mask's, in bytes

PROGRAM = """
import json, sys, torch, torch_npu
def heads(rows, *layout): return torch.ones(layout, dtype=torch.bfloat16, device="npu", requires_grad=True)
def attention(rows, **how):
    q, k, v = (heads(rows, 1, 2, rows, 64) for _ in range(3))
    return (q, k, v), lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)
def fusion(layout, **how):
    def case(rows):
        shape = {"BNSD": (1, 2, rows, 64), "TND": (rows, 2, 64)}[layout]
        q, k, v = (heads(rows, *shape) for _ in range(3))
        ends = {"actual_seq_qlen": [rows // 4, rows], "actual_seq_kvlen": [rows // 4, rows]} if layout == "TND" else {}
        return (q, k, v), lambda: torch_npu.npu_fusion_attention(q, k, v, 2, layout, scale=0.1, **ends)[0]
    return case
def norm(rows):
    x, gamma = heads(rows, rows, 128), heads(rows, 128)
    return (x, gamma), lambda: torch_npu.npu_rms_norm(x, gamma)[0]
def swiglu(rows):
    x = heads(rows, rows, 256)
    return (x,), lambda: torch_npu.npu_swiglu(x)
def rotary(rows):
    x, cos, sin = heads(rows, 1, rows, 2, 64), heads(rows, 1, rows, 1, 64), heads(rows, 1, rows, 1, 64)
    return (x,), lambda: torch_npu.npu_rotary_mul(x, cos.detach(), sin.detach())
def unpermute(rows):
    x, places = heads(rows, 2 * rows, 128), torch.arange(2 * rows, device="npu", dtype=torch.int32)
    probs = torch.ones(rows, 2, device="npu", dtype=torch.bfloat16)
    return (x,), lambda: torch_npu.npu_moe_token_unpermute(x, places, probs)
def grouped(rows):
    x, weight = heads(rows, rows, 128).detach(), heads(rows, 4, 128, 128).detach()
    ends = torch.tensor([rows // 8, rows // 4, rows // 2, rows], device="npu")
    return (), lambda: torch_npu.npu_grouped_matmul([x], [weight], group_list=ends, split_item=2, group_type=0)[0]
cases = {"sdpa": attention, "causal sdpa": lambda rows: attention(rows, is_causal=True), "BNSD": fusion("BNSD"), "TND": fusion("TND"),
         "norm": norm, "swiglu": swiglu, "rotary": rotary, "unpermute": unpermute, "grouped": grouped}
found = {}
for name, case in cases.items():
    found[name] = []
    for rows in (1024, 2048):
        inputs, call = case(rows)
        before = torch.npu.memory_allocated()
        torch.npu.reset_peak_memory_stats()
        out = call()
        line = [torch.npu.memory_allocated() - before, torch.npu.max_memory_allocated() - before]
        if inputs:
            out.backward(torch.empty_like(out))
            line.append(torch.npu.max_memory_allocated() - before)
        found[name].append(line)
        del inputs, call, out
print(json.dumps(found))
"""  # noqa: E501

pytestmark = pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/device/csrc", "packages/virtual-ascend/virtual_ascend/operators"
)

Costs = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def costs(python: Run) -> tuple[Costs, Costs]:
    """Return for 1024 and 2048 rows, by operator, the kept bytes and the peaks of forward and backward."""
    found = []
    for phantom in ("0", "0.03125"):
        done = python(PROGRAM, VIRTUAL_ASCEND_PHANTOM=phantom)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found[0], found[1]


def test_they_cost_the_same_with_values_and_without(costs: tuple[Costs, Costs]) -> None:
    assert costs[1] == costs[0]


_OUT = ROWS * HEADS * WIDTH * HALF
_STATISTICS = 2 * ROWS * HEADS * 8 * SINGLE
KEPT = {
    "sdpa": _OUT + _STATISTICS,
    "BNSD": _OUT + _STATISTICS,
    "TND": _OUT + _STATISTICS,
    "norm": _OUT + ROWS * SINGLE,
    "swiglu": _OUT,
    "rotary": _OUT,
    "unpermute": _OUT,
    "grouped": _OUT,
}


@pytest.mark.parametrize("operator", KEPT)
def test_they_take_what_they_give_and_twice_of_it_for_twice_the_rows(
    costs: tuple[Costs, Costs], operator: str
) -> None:
    once, twice = costs[0][operator]
    assert once[:2] == [KEPT[operator]] * 2
    assert twice[:2] == [2 * KEPT[operator]] * 2


def test_a_causal_rule_keeps_a_template_of_one_size(costs: tuple[Costs, Costs]) -> None:
    once, twice = costs[0]["causal sdpa"]
    assert once[0] == _OUT + _STATISTICS + TEMPLATE
    assert twice[0] == 2 * (_OUT + _STATISTICS) + TEMPLATE


@pytest.mark.parametrize("operator", ["sdpa", "BNSD", "TND"])
def test_the_gradient_of_attention_takes_twice_for_twice_the_rows(costs: tuple[Costs, Costs], operator: str) -> None:
    once, twice = (line[2] for line in costs[0][operator])
    assert twice == 2 * once
