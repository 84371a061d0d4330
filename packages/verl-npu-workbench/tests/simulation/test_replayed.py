"""After a weight sync, the first batch by a captured graph, and the first padded one, are compared with eager mode."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.engines import replayed
from verl_npu.features.weight_sync.engines.replayed import compare_next_replay, difference
from verl_npu.features.weight_sync.engines.vllm import VLLMEngine

WIDTH, PADDED, TOKENS = 8, 4, 3


class Mode(Enum):
    """A stand-in for vLLM's CUDAGraphMode."""

    NONE = 0
    FULL = 1


@dataclass
class Context:
    """A stand-in for vLLM's ForwardContext."""

    cudagraph_runtime_mode: Mode = Mode.FULL
    layer: int = 0


class Graphed:
    """A stand-in for vllm-ascend's ACLGraphWrapper around a model."""

    def __init__(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        self.inner = model
        self.graph: Any = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            self.out = model(batch)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        context = sys.modules["vllm_ascend.compilation.acl_graph"].get_forward_context()
        context.layer += 1
        if context.cudagraph_runtime_mode is Mode.NONE:
            return self.inner(batch)  # type: ignore[no-any-return]
        self.graph.replay()
        return self.out


class Model(torch.nn.Module):
    """One layer that counts its calls outside a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.layer(batch))

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)


def settings() -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(is_hybrid=False, is_attention_free=False),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        speculative_config=None,
        kv_transfer_config=None,
        compilation_config=SimpleNamespace(cudagraph_mode=Mode.FULL),
        additional_config=None,
    )


@dataclass
class Runner:
    """A stand-in for vllm-ascend's NPUModelRunner."""

    model: Any
    batch: torch.Tensor
    vllm_config: Any = field(default_factory=settings)

    def execute_model(self, scheduled: Any) -> torch.Tensor:
        return self.model(self.batch).clone()  # type: ignore[no-any-return]


BATCH = SimpleNamespace(total_num_scheduled_tokens=TOKENS)
WHOLE = SimpleNamespace(total_num_scheduled_tokens=PADDED)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    """Install the forward context of a vllm-ascend for which the comparison is written."""
    there = Context()
    module = ModuleType("vllm_ascend.compilation.acl_graph")
    module.get_forward_context = lambda: there  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(metadata, "version", lambda name: "0.11.0")
    return there


@pytest.fixture
def runner(npu: ModuleType, context: Context) -> Runner:
    """Return a runner that answers by a graph."""
    torch.manual_seed(0)
    with torch.no_grad():
        model, batch = Model().npu(), torch.randn(PADDED, WIDTH).npu()
        made = Runner(Graphed(model, batch), batch)
    model.calls = 0
    return made


def run(runner: Runner, scheduled: Any = BATCH) -> torch.Tensor:
    with torch.no_grad():
        return runner.execute_model(scheduled)


def test_a_graph_that_reads_the_weights_passes_and_is_compared_once(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.model.layer.weight.data.copy_(torch.randn(WIDTH, WIDTH))
    compare_next_replay(runner)
    first, second = run(runner), run(runner)
    assert torch.equal(first, second)
    assert runner.model.inner.calls == 1
    assert "the first batch by graphs after a weight sync (3 tokens) differs from eager mode by 0" in (
        capsys.readouterr().err
    )


def test_each_comparison_is_told(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        compare_next_replay(runner)
        run(runner)
    said = re.findall(r"eager mode by 0 \(comparison (\d+) in pid \d+\)", capsys.readouterr().err)
    assert [int(number) - int(said[0]) for number in said] == [0, 1, 2]


def test_a_graph_of_stale_weights_ends_the_job_before_its_answer_is_used(runner: Runner) -> None:
    runner.model.layer.weight.data = torch.randn(WIDTH, WIDTH).npu()
    compare_next_replay(runner)
    with pytest.raises(WeightSyncError, match="the outputs of the engine's captured graphs have NaN or infinity"):
        run(runner)


def test_a_batch_without_graphs_is_not_the_one_that_is_compared(runner: Runner, context: Context) -> None:
    runner.model.layer.weight.data = torch.randn(WIDTH, WIDTH).npu()
    compare_next_replay(runner)
    context.cudagraph_runtime_mode = Mode.NONE
    run(runner)
    context.cudagraph_runtime_mode = Mode.FULL
    with pytest.raises(WeightSyncError):
        run(runner)


def test_rows_that_fill_a_batch_up_do_not_count(runner: Runner) -> None:
    graph = runner.model
    answer = type(graph).__call__

    class Garbled(Graphed):
        def __init__(self) -> None:
            vars(self).update(vars(graph))

        def __call__(self, batch: torch.Tensor) -> torch.Tensor:
            out = answer(self, batch).clone()
            out[TOKENS:] = float("nan") if runner.model.replayed is None else 0.0
            return out

    runner.model = Garbled()
    compare_next_replay(runner)
    run(runner)


def test_the_graph_finds_the_context_as_it_was(runner: Runner, context: Context) -> None:
    compare_next_replay(runner)
    run(runner)
    assert context.layer == 1
    assert context.cudagraph_runtime_mode is Mode.FULL


def test_a_batch_that_is_filled_up_is_compared_too_and_others_between_are_not(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_next_replay(runner)
    for scheduled in (WHOLE, WHOLE, BATCH, BATCH):
        run(runner, scheduled)
    assert runner.model.inner.calls == 2
    said = capsys.readouterr().err
    assert "the first batch by graphs after a weight sync (4 tokens) differs from eager mode by 0" in said
    assert (
        "the first batch that is padded to 4 tokens, after a weight sync (3 tokens) differs from eager mode by 0"
        in said
    )
    assert "execute_model" not in vars(runner)


def test_the_next_sync_begins_again(runner: Runner) -> None:
    compare_next_replay(runner)
    run(runner, WHOLE)
    compare_next_replay(runner)
    run(runner, WHOLE)
    assert runner.model.inner.calls == 2


class Mixing(Model):
    """A model whose answer depends on the padding of a batch, as with experts of other ranks."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch) + batch[PADDED - 1] * 0


@pytest.mark.parametrize("first", [BATCH, WHOLE], ids=["filled up", "not filled up before"])
def test_an_answer_that_is_no_number_ends_the_job_though_eager_mode_says_the_same(
    context: Context, npu: ModuleType, first: Any
) -> None:
    with torch.no_grad():
        batch = torch.randn(PADDED, WIDTH).npu()
        runner = Runner(Graphed(Mixing().npu(), batch), batch)
    compare_next_replay(runner)
    if first is WHOLE:
        run(runner, WHOLE)
    batch[PADDED - 1] = torch.nan
    said = (
        "the outputs of 3 of 3 tokens are NaN or infinity, with and without captured graphs, in a batch that is "
        "padded to 4 tokens; do not use this rollout for training; check whether the trainer's loss and gradients are "
        "finite: if they are, the padding of a batch corrupts the answers"
    )
    with pytest.raises(WeightSyncError, match=said):
        run(runner)
    assert "execute_model" not in vars(runner)


def test_weights_that_are_no_numbers_end_the_job_and_the_trainer_is_to_be_looked_at(runner: Runner) -> None:
    runner.model.layer.weight.data.fill_(torch.nan)
    compare_next_replay(runner)
    with pytest.raises(
        WeightSyncError, match="captured graphs; do not use this rollout for training; check whether the trainer"
    ):
        run(runner, WHOLE)


def test_what_only_graphs_answer_no_numbers_for_ends_the_job(runner: Runner) -> None:
    runner.model.inner.forward = torch.ones_like
    runner.model.layer.weight.data.fill_(torch.nan)
    compare_next_replay(runner)
    said = "have NaN or infinity in 3 tokens that are finite in eager mode"
    with pytest.raises(WeightSyncError, match=said):
        run(runner)


class Dividing(Model):
    """A model that answers like NPUs that divide the tokens of a batch among them."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch)[: PADDED // 2]


def test_a_part_of_the_tokens_is_not_compared(
    context: Context, npu: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        batch = torch.randn(PADDED, WIDTH).npu()
        runner = Runner(Graphed(Dividing().npu(), batch), batch)
    batch[0] = torch.nan
    compare_next_replay(runner)
    run(runner)
    assert "is not compared with eager mode: its NPUs divide the tokens" in capsys.readouterr().err
    assert "execute_model" not in vars(runner)


def test_numbers_of_a_graph_are_used_though_eager_mode_has_none(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.model.inner.forward = lambda batch: torch.full_like(batch, torch.nan)
    compare_next_replay(runner)
    assert bool(run(runner).isfinite().all())
    said = capsys.readouterr().err
    assert "captured graphs are finite, but eager mode gives NaN or infinity, in a batch that is padded" in said
    assert "differs from eager mode" not in said


def test_a_second_sync_before_any_batch_is_compared_once(runner: Runner) -> None:
    compare_next_replay(runner)
    compare_next_replay(runner)
    run(runner)
    assert runner.model.inner.calls == 1
    assert "execute_model" not in vars(runner)


@pytest.mark.parametrize("closed", [False, True], ids=["loaded by upstream", "closed until the sync is whole"])
def test_a_sync_that_was_proven_has_the_next_batch_compared(runner: Runner, closed: bool) -> None:
    engine, sent = VLLMEngine(runner), [("layer.weight", torch.randn(WIDTH, WIDTH).npu())]
    engine.expect(sent)
    if closed:
        engine.load(sent)
    else:
        runner.model.load_weights(sent)
    engine.prove()
    engine.open()
    run(runner)
    assert runner.model.inner.calls == 1


def test_a_difference_that_may_be_rounding_is_a_warning(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replayed, "difference", lambda *both: 0.05)
    compare_next_replay(runner)
    run(runner)
    assert "captured graphs differ from eager mode by 0.05" in capsys.readouterr().err


def test_what_only_graphs_make_no_number_is_infinitely_far() -> None:
    numbers, none = torch.ones(2, 3), torch.full((2, 3), float("nan"))
    assert difference(numbers, none) == float("inf")
    assert difference(none, none) == 0
    assert difference(numbers, numbers * 1.25) == pytest.approx(0.25)


def test_one_token_in_many_may_be_another_experts() -> None:
    eager = torch.ones(5, 3)
    answered = eager.clone()
    answered[0] *= 2
    assert difference(eager, answered) == 0


def hybrid(of: Any) -> None:
    of.model_config.is_hybrid = True


def several(of: Any) -> None:
    of.parallel_config.data_parallel_size = 2


def speculating(of: Any) -> None:
    of.speculative_config = object()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hybrid, "a state, which a batch would change twice"),
        (several, "data-parallel ranks"),
        (speculating, "uses speculative decoding"),
    ],
)
def test_an_engine_that_must_not_compute_a_batch_twice_is_left(
    change: Callable[[Any], None], why: str, runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    change(runner.vllm_config)
    compare_next_replay(runner)
    assert vars(runner).keys() == {"model", "batch", "vllm_config"}
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("release", ["0.13.0", "0.23.0"])
@pytest.mark.parametrize(("mode", "compared"), [("FULL_DECODE_ONLY", False), ("PIECEWISE", True)])
def test_full_graphs_of_latent_attention_are_left_from_0_13_on(
    mode: str,
    compared: bool,
    release: str,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: release)
    runner.vllm_config.model_config.use_mla = True
    runner.vllm_config.compilation_config.cudagraph_mode = SimpleNamespace(name=mode)
    compare_next_replay(runner)
    assert ("execute_model" in vars(runner)) is compared
    assert ("its latent attention does not support a batch that is padded" in capsys.readouterr().err) is not compared


def test_another_release_is_left(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.18.0")
    compare_next_replay(runner)
    assert vars(runner).keys() == {"model", "batch", "vllm_config"}
    assert "supports only vllm-ascend 0.11.0, 0.13.0 and 0.23.0, and this is 0.18.0" in capsys.readouterr().err
