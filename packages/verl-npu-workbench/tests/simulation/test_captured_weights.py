"""The proof names each wrong way to hand weights over to a model whose forward is a captured graph.

The answer of the graph, or of the model without it, afterwards shows that a way is wrong.
"""

from __future__ import annotations

import copy
import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from testing import layers
from torch.nn.functional import embedding, linear, silu

from verl_npu.features.weight_sync.engines.captured import remember
from verl_npu.features.weight_sync.engines.proof import Proof, Verdict

Weights = dict[str, torch.Tensor]
NZ = 29
WORDS, HIDDEN, ROWS, HEADS, LATENT = 32, 32, 8, 2, 4
EXPERTS = range(2)
SHAPES = {
    "embed.weight": (WORDS, HIDDEN),
    "first.gate_proj.weight": (HIDDEN, HIDDEN),
    "first.up_proj.weight": (HIDDEN, HIDDEN),
    "second.weight": (HIDDEN, HIDDEN),
    "third.weight": (HIDDEN, HIDDEN),
    "latent.kv_b_proj.weight": (HEADS * 2 * LATENT, HIDDEN),
    **{f"experts.{number}.{name}_proj.weight": (ROWS, HIDDEN) for number in EXPERTS for name in ("gate", "up")},
    **{f"experts.{number}.down_proj.weight": (HIDDEN, ROWS) for number in EXPERTS},
}


class Latent(torch.nn.Module):
    """A stand-in for MLA, which multiplies with copies of its projection."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = torch.nn.Linear(HIDDEN, HEADS * 2 * LATENT, bias=False)
        self.impl = SimpleNamespace(kv_b_proj=self.kv_b_proj, qk_nope_head_dim=LATENT, v_head_dim=LATENT)
        self.process()

    def process(self) -> None:
        heads = self.kv_b_proj.weight.data.view(HEADS, 2 * LATENT, HIDDEN)
        self.impl.W_UK_T = heads[:, :LATENT].clone()
        self.impl.W_UV = heads[:, LATENT:].transpose(1, 2).clone()

    def refresh(self) -> None:
        heads = self.kv_b_proj.weight.data.view(HEADS, 2 * LATENT, HIDDEN)
        self.impl.W_UK_T.copy_(heads[:, :LATENT])
        self.impl.W_UV.copy_(heads[:, LATENT:].transpose(1, 2))


class Model(torch.nn.Module):
    """A tied head, a fused projection, two plain ones, copies, and experts that are transposed."""

    packed_modules_mapping: ClassVar = {"gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, HIDDEN)
        self.first = torch.nn.Module()
        self.first.gate_up_proj = torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.second = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.third = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.latent = Latent()
        method = layers.AscendUnquantizedFusedMoEMethod()
        self.experts = layers.FusedMoE(list(EXPERTS), len(EXPERTS), HIDDEN, ROWS, method)
        self.head = torch.nn.Linear(HIDDEN, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = embedding(tokens, self.embed.weight)
        gate, up = linear(x, self.first.gate_up_proj.weight).chunk(2, -1)
        x = x + silu(gate) * up
        x = x + torch.tanh(linear(x, self.second.weight))
        x = x + torch.tanh(linear(x, self.third.weight))
        keys = torch.einsum("td,hkd->thk", x, self.latent.impl.W_UK_T)
        x = x + torch.tanh(torch.einsum("thk,hdk->td", keys, self.latent.impl.W_UV))
        for number in EXPERTS:
            gate, up = (x @ self.experts.w13_weight[number]).chunk(2, -1)
            x = x + (silu(gate) * up) @ self.experts.w2_weight[number]
        return linear(x, self.head.weight)

    def load(self, sent: Weights, *, without: str = "") -> None:
        """Copy weights into the existing tensors, as an engine loads."""
        for name, tensor in sent.items():
            if name != without:
                self.place_of(name).copy_(tensor)
        self.latent.refresh()

    def place_of(self, name: str) -> torch.Tensor:
        """Return the tensor that a weight of the checkpoint is copied into."""
        path = name.removesuffix(".weight").split(".")
        if path[0] == "first":
            return self.first.gate_up_proj.weight.data.chunk(2)[path[1] == "up_proj"]
        if path[0] != "experts":
            return self.get_parameter(name).data
        if path[2] == "down_proj":
            return self.experts.w2_weight.data[int(path[1])].T
        return self.experts.w13_weight.data[int(path[1])].T.chunk(2)[path[2] == "up_proj"]


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).mul(0.3).npu() for name, shape in SHAPES.items()}


@dataclass
class Engine:
    """A model, and the graph of its forward."""

    model: Model
    tokens: torch.Tensor
    graph: Any
    out: torch.Tensor

    def replay(self) -> torch.Tensor:
        self.graph.replay()
        return self.out.clone()

    def eager(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model(self.tokens)  # type: ignore[no-any-return]


@pytest.fixture
def ascend(npu: ModuleType) -> ModuleType:
    return importlib.import_module("torch_npu")


@pytest.fixture
def engine(ascend: ModuleType) -> Engine:
    """Return an engine that holds and answers by `weights(1)`, after a first sync that was proven."""
    return started(ascend)


def started(ascend: ModuleType, packed: bool = False) -> Engine:
    with torch.no_grad():
        model = Model().npu()
        model.latent.process()
        model.head.weight = model.embed.weight
        if packed:
            model.second.weight.data = ascend.npu_format_cast(model.second.weight.data, NZ)
        tokens, graph = torch.arange(5, device="npu"), ascend.npu.NPUGraph()
        with ascend.npu.graph(graph):
            out = model(tokens)
        remember(model)
        made = Engine(model, tokens, graph, out)
        assert prove(made, weights(1), Model.load) == Verdict(made_of(model), (), {})
    return made


def made_of(model: Model) -> int:
    return 2 + 3 + 1 + 2 + 2  # embedding and head; the projections; kv_b_proj and its copies; the experts


Way = Callable[[Model, Weights], None]


def prove(engine: Engine, sent: Weights, way: Way) -> Verdict:
    proof = Proof(engine.model)
    for name, tensor in sent.items():
        proof.expect(name, tensor)
    with torch.no_grad():
        way(engine.model, sent)
    gc.collect()
    return proof.conclude()


def right(sent: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Return the answer of a model with these weights, without a graph."""
    with torch.no_grad():
        model = Model().npu()
        model.latent.process()
        model.head.weight = model.embed.weight
        model.load(sent)
        return model(tokens)


def answers(engine: Engine, expected: torch.Tensor) -> bool:
    """Return whether the engine answers so, by its graph and without."""
    try:
        return torch.equal(engine.replay(), expected) and torch.equal(engine.eager(), expected)
    except RuntimeError:  # a weight cannot be read
        return False


def a_new_tensor(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    model.second.weight.data = sent["second.weight"].clone()


def a_new_parameter(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    model.second.weight = torch.nn.Parameter(sent["second.weight"].clone())


def what_was_sent_itself(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    model.second.weight.data = sent["second.weight"]


def exchanged_tensors(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    torch.utils.swap_tensors(model.second.weight, torch.nn.Parameter(sent["second.weight"].clone()))


def assigned_by_load_state_dict(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    model.load_state_dict({"second.weight": sent["second.weight"].clone()}, strict=False, assign=True)


def memory_that_was_freed_and_taken_again(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    storage, size = model.second.weight.untyped_storage(), model.second.weight.untyped_storage().nbytes()
    storage.resize_(0)
    # Other tensors have the memory now: otherwise the weight would come back at the same address.
    model.taken = [torch.zeros(size, dtype=torch.uint8, device="npu") for _ in range(8)]
    storage.resize_(size)
    model.second.weight.data.copy_(sent["second.weight"])


def a_missed_layer(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")


def half_of_a_fused_weight(model: Model, sent: Weights) -> None:
    model.load(sent, without="first.up_proj.weight")


def two_layers_exchanged(model: Model, sent: Weights) -> None:
    model.load({**sent, "second.weight": sent["third.weight"], "third.weight": sent["second.weight"]})


def a_view_of_freed_memory(model: Model, sent: Weights) -> None:
    weak = importlib.import_module("torch_npu")._C._weak_ref_tensor
    model.load(sent, without="second.weight")
    bucket = torch.cat([sent["second.weight"].view(-1), sent["third.weight"].view(-1)])
    model.second.weight.data = weak(bucket)[: HIDDEN * HIDDEN].view(HIDDEN, HIDDEN)


def a_view_of_a_bucket_that_is_filled_again(model: Model, sent: Weights) -> None:
    model.load(sent, without="second.weight")
    bucket = sent["second.weight"].clone()
    model.second.weight.data = bucket.view(HIDDEN, HIDDEN)
    bucket.copy_(sent["third.weight"])


def a_tied_weight_untied(model: Model, sent: Weights) -> None:
    model.head.weight = torch.nn.Parameter(model.embed.weight.data.clone())
    model.load(sent)


def a_tied_weight_untied_and_loaded(model: Model, sent: Weights) -> None:
    model.head.weight = torch.nn.Parameter(model.embed.weight.data.clone())
    model.load(sent, without="embed.weight")
    model.embed.weight = torch.nn.Parameter(sent["embed.weight"].clone())
    model.head.weight.data.copy_(sent["embed.weight"])


def a_transposed_expert(model: Model, sent: Weights) -> None:
    model.load(sent)
    held = model.experts.w2_weight.data
    held.copy_(held.transpose(-1, -2).contiguous().view(held.shape))


def experts_transposed_into_new_memory(model: Model, sent: Weights) -> None:
    """vllm-ascend's methods that process weights after a load do this."""
    model.load(sent)
    model.experts.w13_weight = torch.nn.Parameter(model.experts.w13_weight.data.clone())


def a_cast_to_a_new_tensor(model: Model, sent: Weights) -> None:
    model.load(sent)
    model.second.weight.data = model.second.weight.data.bfloat16().float()


def the_values_of_another_dtype(model: Model, sent: Weights) -> None:
    model.load({name: tensor.bfloat16() if name == "second.weight" else tensor for name, tensor in sent.items()})


def a_load_into_a_stale_module(model: Model, sent: Weights) -> None:
    old = model.second
    model.second = copy.deepcopy(old)
    model.load(sent, without="second.weight")
    old.weight.data.copy_(sent["second.weight"])


def a_load_into_a_new_module(model: Model, sent: Weights) -> None:
    model.second = copy.deepcopy(model.second)
    model.load(sent)


def copies_that_were_not_made_again(model: Model, sent: Weights) -> None:
    refresh, model.latent.refresh = model.latent.refresh, lambda: None  # type: ignore[method-assign]
    model.load(sent)
    model.latent.refresh = refresh  # type: ignore[method-assign]


def copies_that_were_made_anew(model: Model, sent: Weights) -> None:
    model.load(sent)
    model.latent.process()


STALE = "the graphs still read the old address"
SECOND = "second.weight"
WAYS: list[tuple[Way, str, str]] = [
    (a_new_tensor, SECOND, STALE),
    (a_new_parameter, SECOND, STALE),
    (what_was_sent_itself, SECOND, STALE),
    (exchanged_tensors, SECOND, STALE),
    (assigned_by_load_state_dict, SECOND, STALE),
    (memory_that_was_freed_and_taken_again, SECOND, STALE),
    (a_missed_layer, SECOND, "the same values as before this sync"),
    (half_of_a_fused_weight, "first.up_proj.weight", "the same values as before this sync"),
    (two_layers_exchanged, SECOND, "was sent as third.weight"),
    (a_view_of_freed_memory, SECOND, "cannot be read"),
    (a_view_of_a_bucket_that_is_filled_again, SECOND, "was sent as third.weight"),
    (a_tied_weight_untied, "embed.weight", "the same values as before this sync"),
    (a_tied_weight_untied_and_loaded, "head.weight", STALE),
    (a_transposed_expert, "experts.0.down_proj.weight", "transposed"),
    (experts_transposed_into_new_memory, "experts.w13_weight", STALE),
    (a_cast_to_a_new_tensor, SECOND, STALE),
    (the_values_of_another_dtype, SECOND, "as if rounded to bfloat16"),
    (a_load_into_a_stale_module, SECOND, "the same values as before this sync"),
    (a_load_into_a_new_module, SECOND, STALE),
    (copies_that_were_not_made_again, "latent.kv_b_proj.weight", "the same values as before this sync"),
    (copies_that_were_made_anew, "latent.impl.W_UV", STALE),
]


# One way for each kind of fault; the rest at night.
DAILY = {
    a_new_tensor,
    a_missed_layer,
    two_layers_exchanged,
    a_view_of_freed_memory,
    a_transposed_expert,
    the_values_of_another_dtype,
    copies_that_were_not_made_again,
}
NIGHTLY = pytest.mark.nightly(
    "packages/verl-npu-workbench/verl_npu_workbench/simulation/rollout", "verl_npu/features/weight_sync/engines"
)


@pytest.mark.parametrize(
    ("way", "name", "words"),
    [pytest.param(*each, id=each[0].__name__, marks=() if each[0] in DAILY else NIGHTLY) for each in WAYS],
)
def test_a_wrong_way_to_hand_weights_over_is_named(engine: Engine, way: Way, name: str, words: str) -> None:
    sent = weights(2)
    verdict = prove(engine, sent, way)
    said = [each.found for each in verdict.differences if name in (each.source, each.parameter)]
    assert any(words in found for found in said), verdict.page()
    assert not answers(engine, right(weights(2), engine.tokens))


def test_nothing_is_named_where_nothing_is_wrong(engine: Engine) -> None:
    for seed in (2, 3):
        sent = weights(seed)
        assert prove(engine, sent, Model.load) == Verdict(made_of(engine.model), (), {})
        assert answers(engine, right(sent, engine.tokens))


def test_what_moved_before_the_graphs_were_captured_again_is_right(engine: Engine, ascend: ModuleType) -> None:
    sent = weights(2)
    with torch.no_grad():
        a_new_parameter(engine.model, sent)
        engine.graph.reset()
        with ascend.npu.graph(engine.graph):
            engine.out = engine.model(engine.tokens)
    remember(engine.model)
    assert prove(engine, sent, Model.load).differences == ()
    assert answers(engine, right(sent, engine.tokens))


def test_a_weight_that_no_graph_reads_may_move(engine: Engine) -> None:
    """An engine's output head computes outside its graphs."""
    engine.graph.reset()
    assert prove(engine, weights(2), a_new_parameter).differences == ()


def bytes_of_nd(model: Model, sent: Weights) -> None:
    """A broadcast into the weight's address does this."""
    model.load(sent, without="second.weight")
    model.second.weight.data.untyped_storage().copy_(sent["second.weight"].untyped_storage())


@pytest.mark.parametrize("way", [Model.load, bytes_of_nd, a_new_tensor])
def test_a_weight_in_fractal_nz_is_proven_or_named(way: Way, ascend: ModuleType) -> None:
    ascend.npu.config.allow_internal_format = True
    try:
        engine = started(ascend, packed=True)
    finally:
        ascend.npu.config.allow_internal_format = False
    assert ascend.get_npu_format(engine.model.second.weight) == NZ
    sent = weights(2)
    said = [(each.source or each.parameter, each.found) for each in prove(engine, sent, way).differences]
    expected = {Model.load: "", bytes_of_nd: "other values", a_new_tensor: STALE}[way]
    assert [name for name, found in said if expected in found] == ([SECOND] if expected else [])
    assert answers(engine, right(weights(2), engine.tokens)) is (way is Model.load)
