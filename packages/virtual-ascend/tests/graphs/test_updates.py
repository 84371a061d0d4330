"""Tasks of a graph that get other arguments, and events between a graph and work outside it."""

from __future__ import annotations

from types import ModuleType

import pytest

torch = pytest.importorskip("torch")


class Attention:
    """One layer's attention to a paged cache, captured as vllm-ascend captures it."""

    def __init__(self, ascend: ModuleType) -> None:
        self.npu, self.ascend = ascend.npu, ascend
        self.query = torch.randn(2, 2, 16, device="npu").half()
        self.cache = torch.randn(4, 8, 1, 16, device="npu").half()
        self.table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device="npu")
        self.out = torch.zeros_like(self.query)
        self.graph, self.event = self.npu.NPUGraph(), self.npu.ExternalEvent()
        self.stream = self.npu.Stream()
        with self.npu.graph(self.graph):
            here = self.npu.current_stream()
            self.event.wait(here)
            self.event.reset(here)
            self.npu.graph_task_group_begin(here)
            self.attend(self.out, [1, 1])
            self.handle = self.npu.graph_task_group_end(here)
            self.after = self.out + 1

    def attend(self, out: torch.Tensor, lengths: list[int], **more: object) -> None:
        """Attend to the first tokens of each sequence."""
        self.ascend._npu_paged_attention(
            self.query,
            self.cache,
            self.cache,
            1,
            2,
            0.25,
            self.table,
            torch.tensor(lengths, dtype=torch.int32),
            out,
            **more,
        )

    def update(self, lengths: list[int]) -> None:
        """Give the graph's attention other lengths."""
        with self.npu.stream(self.stream):
            self.npu.graph_task_update_begin(self.stream, self.handle)
            self.attend(self.out, lengths)
            self.npu.graph_task_update_end(self.stream)
            self.event.record(self.stream)

    def expected(self, lengths: list[int]) -> torch.Tensor:
        """Return the result without a graph."""
        out = torch.zeros_like(self.query)
        self.attend(out, lengths)
        return out


@pytest.fixture
def attention(ascend: ModuleType) -> Attention:
    return Attention(ascend)


@pytest.mark.parametrize("first", ["replay", "update"])
def test_a_replay_takes_the_new_arguments_whichever_comes_first(attention: Attention, first: str) -> None:
    for lengths in ([5, 9], [16, 2]):
        if first == "replay":
            attention.graph.replay()
            attention.update(lengths)
        else:
            attention.update(lengths)
            attention.graph.replay()
        assert torch.equal(attention.out, attention.expected(lengths))
        assert torch.equal(attention.after, attention.out + 1)


def test_an_update_computes_nothing(attention: Attention) -> None:
    attention.update([5, 9])
    assert attention.out.abs().sum() == 0


def test_who_waits_for_an_event_that_nobody_records_is_told(attention: Attention) -> None:
    attention.graph.replay()
    with pytest.raises(RuntimeError, match="waits for an ExternalEvent"):
        attention.out.add_(1)
    with pytest.raises(RuntimeError, match="on a real NPU, this call would never return"):
        attention.npu.synchronize()
    with pytest.raises(RuntimeError, match="still waits for an ExternalEvent"):
        attention.graph.replay()
    attention.update([5, 9])
    attention.npu.synchronize()
    assert torch.equal(attention.out, attention.expected([5, 9]))


def test_an_update_must_be_of_as_many_tasks(attention: Attention) -> None:
    with attention.npu.stream(attention.stream):
        attention.npu.graph_task_update_begin(attention.stream, attention.handle)
        with pytest.raises(RuntimeError, match=r"error code is 107033.*\n.*\n.*0 tasks for a group of 1"):
            attention.npu.graph_task_update_end(attention.stream)


def test_a_group_is_of_a_capture(attention: Attention) -> None:
    with pytest.raises(RuntimeError, match="error code is 107029"):
        attention.npu.graph_task_group_begin(attention.stream)


def test_a_graph_updates_by_itself_what_torch_npu_does(ascend: ModuleType) -> None:
    query = torch.randn(2, 2, 1, 16, device="npu").half()
    key = torch.randn(2, 2, 8, 16, device="npu").half()
    lengths: list[int] = [8, 8]

    def attend(lengths: list[int]) -> torch.Tensor:
        found: torch.Tensor = ascend.npu_fused_infer_attention_score(
            query, key, key, num_heads=2, input_layout="BNSD", scale=0.25, actual_seq_lengths_kv=lengths
        )[0]
        return found

    graph = ascend.npu.NPUGraph()
    with torch.no_grad(), ascend.npu.graph(graph, auto_dispatch_capture=True):
        out = attend(lengths)
    graph.replay()
    graph.update([{"actual_seq_lengths_kv": [3, 5]}])
    assert torch.equal(out, attend([3, 5]))
    with pytest.raises(RuntimeError, match="there are 1 operators that need to be updated"):
        graph.update([{}, {}])
    plain = ascend.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        plain.update([{}])


def test_the_out_form_writes_as_the_other_one_returns(ascend: ModuleType) -> None:
    query = torch.randn(2, 2, 1, 16, device="npu").half()
    given = {"num_heads": 2, "input_layout": "BNSD", "scale": 0.25, "softmax_lse_flag": True}
    expected = ascend.npu_fused_infer_attention_score(query, query, query, **given)
    workspace = ascend._npu_fused_infer_attention_score_get_max_workspace(query, query, query, **given)
    out = [torch.empty_like(result) for result in expected]
    ascend.npu_fused_infer_attention_score.out(query, query, query, workspace=workspace, out=out, **given)
    assert all(torch.equal(*pair) for pair in zip(out, expected, strict=True))
