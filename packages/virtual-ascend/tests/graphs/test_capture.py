"""A graph repeats operators at the addresses that they had, on whatever data is there."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return a function that reads the lines printed about graphs; each line comes once in a test."""
    return lambda: capsys.readouterr().err.splitlines()


def captured(ascend: ModuleType, work: Callable[[], Any], **options: object) -> tuple[Any, Any]:
    """Return a graph of `work`, and the result of `work`."""
    graph = ascend.npu.NPUGraph()
    with torch.no_grad(), ascend.npu.graph(graph, **options):
        results = work()
    return graph, results


def new(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="npu")


def test_a_replay_computes_with_what_lies_at_the_addresses(ascend: ModuleType) -> None:
    x, w = new(4, 8), new(8, 8)
    graph, y = captured(ascend, lambda: torch.relu(x @ w).softmax(-1) * 2)
    x.copy_(torch.randn(4, 8))
    w.mul_(3)
    graph.replay()
    assert torch.equal(y, torch.relu(x @ w).softmax(-1) * 2)


def test_a_capture_changes_nothing(ascend: ModuleType) -> None:
    x, rows = torch.zeros(4, device="npu"), torch.zeros(3, 4, device="npu")
    graph, _ = captured(ascend, lambda: (x.add_(1), rows[1].copy_(x), torch.add(x, 1, out=rows[2])))
    assert (x.tolist(), rows.abs().sum().item()) == ([0] * 4, 0)
    graph.replay()
    graph.replay()
    assert (x.tolist(), rows.tolist()) == ([2] * 4, [[0] * 4, [2] * 4, [3] * 4])


def test_views_and_lists_of_tensors_are_found_again(ascend: ModuleType) -> None:
    x = new(6, 4)

    def work() -> torch.Tensor:
        left, right = x.t().split(3, dim=1)
        return torch.cat([left, right.flip(0)]).view(-1).index_select(0, torch.arange(5, device="npu"))

    graph, y = captured(ascend, work)
    x.copy_(torch.randn(6, 4))
    graph.replay()
    assert torch.equal(y, work())


def test_what_the_host_gave_is_what_it_was_at_the_capture(ascend: ModuleType) -> None:
    x, factor, index = new(4), torch.tensor(2.0), torch.tensor([0, 1])
    graph, y = captured(ascend, lambda: x[index] * factor)
    factor.fill_(100)
    index.fill_(3)
    graph.replay()
    assert torch.equal(y, x[:2] * 2)


def test_a_result_lies_in_the_pool_and_its_memory_is_taken_again(ascend: ModuleType) -> None:
    x, pool = new(256, 256), ascend.npu.graph_pool_handle()
    first, y = captured(ascend, lambda: (x + 1).relu().sum(0), pool=pool)
    addresses = {tensor[1] for _, tensors in first._graph.tasks() for tensor in tensors} - {x.data_ptr()}
    second, z = captured(ascend, lambda: (x + 2).relu().sum(0), pool=pool)
    shared = {tensor[1] for _, tensors in second._graph.tasks() for tensor in tensors} & addresses
    assert (first.pool(), second.pool()) == (pool, pool)
    assert shared
    assert y.data_ptr() not in shared
    second.replay()
    first.replay()
    assert (torch.equal(y, (x + 1).relu().sum(0)), torch.equal(z, (x + 2).relu().sum(0))) == (True, True)


def _summed(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).sum()


def test_a_graph_keeps_its_pool_and_nothing_else(ascend: ModuleType) -> None:
    ascend.npu.empty_cache()
    before = ascend.npu.memory_allocated(), ascend.npu.memory_reserved()
    x = new(512, 512)
    graph, y = captured(ascend, functools.partial(_summed, x))
    del x
    ascend.npu.empty_cache()
    held = ascend.npu.memory_reserved() - before[1]
    assert ascend.npu.memory_allocated() - before[0] == 512  # the sum
    assert held == 2 * 512 * 512 * 4 + 512
    graph.reset()
    del y, graph
    gc.collect()
    ascend.npu.empty_cache()
    assert (ascend.npu.memory_allocated(), ascend.npu.memory_reserved()) == before


def test_random_numbers_are_those_of_eager_mode(ascend: ModuleType) -> None:
    x = torch.empty(8, device="npu")
    ascend.npu.manual_seed(7)
    graph, y = captured(
        ascend, lambda: (x.uniform_(), torch.nn.functional.dropout(torch.ones(8, device="npu"), 0.5))[1]
    )
    made = []
    for _ in range(2):
        graph.replay()
        made.append((x.tolist(), y.tolist()))
    ascend.npu.manual_seed(7)
    expected = []
    for _ in range(2):
        x.uniform_()
        expected.append((x.tolist(), torch.nn.functional.dropout(torch.ones(8, device="npu"), 0.5).tolist()))
    assert made == expected
    assert made[0] != made[1]


def test_a_weight_that_was_replaced_is_told_by_name_and_place(
    ascend: ModuleType, told: Callable[[], list[str]]
) -> None:
    x, w = new(4, 8), torch.nn.Parameter(new(8, 8))
    graph, y = captured(ascend, lambda: x @ w)
    graph.replay()
    assert torch.equal(y, x @ w)
    w.data = new(8, 8)
    graph.replay()
    graph.replay()
    assert y.isnan().all()
    (line,) = told()
    assert "argument mat2 of aten::mm (Float [8, 8]), freed at " in line
    assert "in test_a_weight_that_was_replaced" in line


def test_a_weight_that_somebody_still_holds_is_read_as_it_is(
    ascend: ModuleType, told: Callable[[], list[str]]
) -> None:
    x, w = new(4, 8), torch.nn.Parameter(new(8, 8))
    held = w.data
    graph, y = captured(ascend, lambda: x @ w)
    w.data = new(8, 8)
    graph.replay()
    assert torch.equal(y, x @ held)
    assert told() == []


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda npu, x: x.sum().item(), 107027),
        (lambda npu, x: x.cpu(), 107027),
        (lambda npu, x: torch.tensor([1.0], device="npu"), 107027),
        (lambda npu, x: x.copy_(torch.ones(4)), 107027),
        (lambda npu, x: x.nonzero(), 107027),
        (lambda npu, x: bool((x > 0).any()), 107027),
        (lambda npu, x: npu.current_stream().synchronize(), 107027),
        (lambda npu, x: npu.current_stream().record_event().synchronize(), 107028),
        (lambda npu, x: npu.synchronize(), 107030),
    ],
)
def test_a_capture_refuses_to_let_the_host_wait(
    ascend: ModuleType, work: Callable[[ModuleType, torch.Tensor], object], code: int
) -> None:
    x, graph = new(4), ascend.npu.NPUGraph()
    with pytest.raises(RuntimeError, match=f"NPU function error: .*, error code is {code}"), ascend.npu.graph(graph):
        work(ascend.npu, x)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    ascend.npu.synchronize()


def test_copies_that_are_not_waited_for_are_captured(ascend: ModuleType) -> None:
    x, source, target = new(4), torch.ones(4).pin_memory(), torch.zeros(4).pin_memory()
    graph, _ = captured(ascend, lambda: (x.copy_(source, non_blocking=True), target.copy_(x, non_blocking=True)))
    assert target.tolist() == [0] * 4
    source.fill_(5)
    graph.replay()
    assert (x.tolist(), target.tolist()) == ([5] * 4, [5] * 4)


def test_the_default_stream_and_a_second_capture_are_refused(ascend: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="NPU graphs must be captured on a non-default stream"):
        ascend.npu.NPUGraph().capture_begin()
    graph = ascend.npu.NPUGraph()
    with ascend.npu.graph(graph):
        with pytest.raises(RuntimeError, match="error code is 107027"):
            ascend.npu.NPUGraph().capture_begin()
        assert ascend.npu.is_current_stream_capturing()
    assert not ascend.npu.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="already owns a captured graph"), ascend.npu.graph(graph):
        pass
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        captured(ascend, lambda: None, capture_error_mode="some")


def test_a_stream_that_waits_for_the_capture_becomes_part_of_it(ascend: ModuleType) -> None:
    npu = ascend.npu
    x, side = new(4), npu.Stream()

    def work(joins: bool) -> torch.Tensor:
        main = npu.current_stream()
        side.wait_stream(main)
        with npu.stream(side):
            y = x * 2
        if joins:
            main.wait_stream(side)
        return y

    graph, y = captured(ascend, lambda: work(True))
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [6] * 4
    with pytest.raises(RuntimeError, match="error code is 107025"):
        captured(ascend, lambda: work(False))


def test_work_of_another_stream_is_no_part_of_the_capture(ascend: ModuleType) -> None:
    x, side = torch.zeros(4, device="npu"), ascend.npu.Stream()

    def work() -> None:
        with ascend.npu.stream(side):
            x.add_(1)

    graph, _ = captured(ascend, work)
    assert x.tolist() == [1] * 4
    graph.replay()
    assert x.tolist() == [1] * 4


def test_generators_refuse_what_a_capture_cannot_know(ascend: ModuleType) -> None:
    generator = torch.Generator("npu")
    with ascend.npu.graph(ascend.npu.NPUGraph()):
        with pytest.raises(RuntimeError, match="seed while in capture mode during NPU graph capture"):
            generator.seed()
        with pytest.raises(RuntimeError, match="only if new seed is the same"):
            generator.manual_seed(generator.initial_seed() + 1)
        generator.manual_seed(generator.initial_seed())


def test_an_operator_in_python_is_one_task(ascend: ModuleType) -> None:
    logits, k = new(2, 16), torch.tensor([3, 5], dtype=torch.int32, device="npu")
    p = torch.tensor([0.9, 0.5], device="npu")
    graph, kept = captured(ascend, lambda: ascend.npu_top_k_top_p(logits, p, k))
    assert [name for name, _ in graph._graph.tasks()] == ["npu::npu_top_k_top_p"]
    logits.copy_(torch.randn(2, 16))
    k.fill_(2)
    graph.replay()
    assert torch.equal(kept, ascend.npu_top_k_top_p(logits, p, k))


def test_experts_of_a_rank_may_get_more_rows_at_a_replay(ascend: ModuleType) -> None:
    x, experts = new(3, 4), torch.tensor([[0], [2], [2]], dtype=torch.int32, device="npu")
    share = {"expert_num": 4, "active_expert_range": [0, 2], "quant_mode": -1}
    graph, (rows, *_) = captured(ascend, lambda: ascend.npu_moe_init_routing_v2(x, experts, **share))
    for held, taken in (([[1], [0], [1]], [1, 0, 2]), ([[3], [3], [3]], [])):
        experts.copy_(torch.tensor(held, dtype=torch.int32))
        graph.replay()
        assert torch.equal(rows[: len(taken)], x[taken])
        assert not rows[len(taken) :].any()


def test_an_operator_in_python_that_writes_writes_at_a_replay_alone(ascend: ModuleType) -> None:
    caches = [torch.zeros(2, 4, 1, 8, device="npu", dtype=torch.float16) for _ in range(2)]
    token, slots = new(1, 1, 8).half(), torch.tensor([3], dtype=torch.int32, device="npu")
    graph, _ = captured(ascend, lambda: ascend._npu_reshape_and_cache(token, token, *caches, slots))
    assert caches[0].abs().sum() == 0
    slots.fill_(5)
    graph.replay()
    assert torch.equal(caches[1][1, 1], token[0])


def test_an_operator_in_python_may_return_one_tensor_twice(ascend: ModuleType) -> None:
    """MLA's operator is one: its last two results are one empty tensor."""
    caches = [torch.zeros(2, 4, 1, width, device="npu", dtype=torch.float16) for width in (64, 512)]
    kv, gamma = new(1, 1, 1, 576).half(), torch.ones(512, device="npu").half()
    angles, slots = torch.zeros(1, 1, 1, 64, device="npu").half(), torch.tensor([3], device="npu")

    def work() -> Any:
        return ascend.npu_kv_rmsnorm_rope_cache(kv, gamma, angles, angles, slots, *caches, cache_mode="PA")

    graph, results = captured(ascend, work)
    slots.fill_(5)
    graph.replay()
    assert [result.numel() for result in results[2:]] == [0, 0]
    assert (caches[1][0].abs().sum().item(), caches[1][1, 1].abs().sum().item() > 0) == (0, True)


def test_gradients_are_captured(ascend: ModuleType) -> None:
    x, w = new(4, 8), new(8, 8).requires_grad_()

    def work() -> torch.Tensor:
        loss = ascend.npu_swiglu(torch.tanh(x @ w)).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, w)
        return gradient

    graph = ascend.npu.NPUGraph()
    with ascend.npu.graph(graph):
        found = work()
    x.copy_(torch.randn(4, 8))
    graph.replay()
    assert torch.allclose(found, work())


def test_convolutions_and_histograms_are_captured(ascend: ModuleType) -> None:
    x, w = new(1, 2, 8, 8), new(3, 2, 3, 3)
    graph, (y, counts) = captured(ascend, lambda: (torch.nn.functional.conv2d(x, w), torch.histc(x, 4, -2, 2)))
    x.copy_(torch.randn(1, 2, 8, 8))
    graph.replay()
    assert torch.equal(y, torch.nn.functional.conv2d(x, w))
    assert torch.equal(counts, torch.histc(x, 4, -2, 2))


def test_a_dump_has_each_operator_and_its_addresses(ascend: ModuleType, tmp_path: Path) -> None:
    x = new(4)
    graph, y = captured(ascend, lambda: x + 1)
    graph.debug_dump(str(tmp_path / "graph.json"))
    (task,) = json.loads((tmp_path / "graph.json").read_text())
    assert task["operator"] == "aten::add"
    assert [(each["name"], each["address"]) for each in task["tensors"]] == [
        ("argument self", x.data_ptr()),
        ("the result", y.data_ptr()),
    ]


def test_a_weak_reference_does_not_hold_its_tensor(ascend: ModuleType) -> None:
    x = new(4)
    weak = ascend._C._weak_ref_tensor(x)
    x.fill_(2)
    assert weak.tolist() == [2] * 4
    del x
    with pytest.raises(RuntimeError, match="a weak reference to an NPU tensor is used after its memory was freed at"):
        weak.tolist()


def test_fused_attention_is_captured(ascend: ModuleType) -> None:
    query = new(1, 2, 4, 8)
    graph, out = captured(ascend, lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query))
    query.copy_(torch.randn(1, 2, 4, 8))
    graph.replay()
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(query, query, query))


def test_a_task_queue_of_two_levels_is_refused_as_torch_npu_does(
    ascend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "2")
    with (
        pytest.raises(RuntimeError, match="Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture"),
        ascend.npu.graph(ascend.npu.NPUGraph()),
    ):
        pass
    assert not ascend.npu.is_current_stream_capturing()
