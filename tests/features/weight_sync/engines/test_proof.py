"""The weights that an engine computes with are compared with those it received, whatever it made of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from testing import layers

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.engines import proof
from verl_npu.features.weight_sync.engines.proof import Difference, Proof, Verdict

RANKS, RANK, HIDDEN = 2, 1, 6
Weights = dict[str, torch.Tensor]


class Dense(torch.nn.Module):
    """A rank's part of a model with a layer of each kind, filled by hand and not by a loader."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self) -> None:
        super().__init__()
        self.embed = layers.VocabParallelEmbedding(10, 16, HIDDEN, RANK, RANKS)
        self.qkv_proj = layers.QKVParallelLinear(HIDDEN, 4, 2, 2, RANK, RANKS)
        self.gate_up_proj = layers.MergedColumnParallelLinear(HIDDEN, [8, 8], RANK, RANKS)
        self.down_proj = layers.RowParallelLinear(8, HIDDEN, RANK, RANKS)
        self.norm = torch.nn.LayerNorm(HIDDEN)

    def fill(self, sent: Weights) -> None:
        with torch.no_grad():
            self.embed.weight[:2] = sent["embed.weight"][8:]
            half = [sent[f"{name}_proj.weight"].chunk(2)[1] for name in ("q", "k", "v")]
            self.qkv_proj.weight.copy_(torch.cat(half))
            self.gate_up_proj.weight.copy_(
                torch.cat([sent[f"{name}_proj.weight"].chunk(2)[1] for name in ("gate", "up")])
            )
            self.down_proj.weight.copy_(sent["down_proj.weight"].chunk(2, 1)[1])
            self.down_proj.bias.copy_(sent["down_proj.bias"])
            self.norm.weight.copy_(sent["norm.weight"])
            self.norm.bias.copy_(sent["norm.bias"])


SHAPES = {
    "embed.weight": (10, HIDDEN),
    "q_proj.weight": (8, HIDDEN),
    "k_proj.weight": (4, HIDDEN),
    "v_proj.weight": (4, HIDDEN),
    "gate_proj.weight": (8, HIDDEN),
    "up_proj.weight": (8, HIDDEN),
    "down_proj.weight": (HIDDEN, 8),
    "down_proj.bias": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "norm.bias": (HIDDEN,),
}


def prove(model: Any, sent: Weights) -> Verdict:
    begun = Proof(model)
    for name, tensor in sent.items():
        begun.expect(name, tensor)
    return begun.conclude()


def said(verdict: Verdict) -> list[str]:
    return [str(difference) for difference in verdict.differences]


@pytest.fixture
def sent() -> Weights:
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


@pytest.fixture
def dense(sent: Weights) -> Dense:
    model = Dense()
    model.fill(sent)
    return model


def test_a_rank_that_holds_its_share_of_everything_is_proven(dense: Dense, sent: Weights) -> None:
    assert prove(dense, sent) == Verdict(7, (), {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_engine_of_another_dtype_holds_the_values_after_a_cast(
    dense: Dense, sent: Weights, dtype: torch.dtype
) -> None:
    assert said(prove(dense.to(dtype), sent)) == []


def test_projections_that_a_checkpoint_has_in_one_are_taken_apart(dense: Dense, sent: Weights) -> None:
    fused = {"qkv_proj.weight": torch.cat([sent.pop(f"{name}_proj.weight") for name in ("q", "k", "v")])}
    assert said(prove(dense, {**sent, **fused})) == []
    dense.qkv_proj.weight.data[-1] += 1
    assert said(prove(dense, {**sent, **fused})) == ["qkv_proj.weight (part 3): the engine holds other values"]


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "norm.weight"])
def test_every_part_that_differs_is_named(dense: Dense, sent: Weights, name: str) -> None:
    changed = {**sent, name: sent[name] + torch.randn(SHAPES[name])}
    assert said(prove(dense, changed)) == [f"{name}: the engine holds other values"]


def test_the_share_of_another_rank_is_recognised(dense: Dense, sent: Weights) -> None:
    dense.down_proj.weight.data.copy_(sent["down_proj.weight"].chunk(2, 1)[0])
    assert said(prove(dense, sent)) == ["down_proj.weight: rank 1 of the engine holds the share of rank 0"]


def test_a_weight_in_another_weights_place_is_recognised(dense: Dense, sent: Weights) -> None:
    dense.gate_up_proj.weight.data.copy_(dense.gate_up_proj.weight.data.roll(4, 0))
    assert said(prove(dense, sent)) == [
        "gate_proj.weight: the engine holds the tensor that was sent as up_proj.weight",
        "up_proj.weight: the engine holds the tensor that was sent as gate_proj.weight",
    ]


def test_what_the_last_sync_left_is_recognised(dense: Dense, sent: Weights) -> None:
    prove(dense, sent)
    later = {name: torch.randn(tensor.shape) for name, tensor in sent.items()}
    dense.fill({**later, "k_proj.weight": sent["k_proj.weight"]})
    assert said(prove(dense, later)) == ["k_proj.weight: the engine holds the same values as before this sync"]


def test_a_part_that_was_not_sent_is_named(dense: Dense, sent: Weights) -> None:
    del sent["up_proj.weight"]
    assert said(prove(dense, sent)) == ["up_proj.weight: the trainer did not send this tensor"]


def test_a_parameter_that_nothing_was_sent_for_is_named(dense: Dense, sent: Weights) -> None:
    del sent["norm.bias"]
    assert said(prove(dense, sent)) == ["norm.bias: no sent tensor belongs to this parameter"]


def test_a_weight_that_a_layer_of_the_engine_lacks_is_named(dense: Dense, sent: Weights) -> None:
    extra = {**sent, "q_proj.bias": torch.ones(8)}
    assert said(prove(dense, extra)) == ["q_proj.bias: the engine's layer has no such tensor"]


def test_a_layer_that_the_engine_lacks_is_told_and_no_difference(dense: Dense, sent: Weights) -> None:
    verdict = prove(dense, {**sent, "mtp.weight": torch.ones(3)})
    assert verdict.differences == ()
    assert verdict.unknown == {"mtp.weight": "the engine has no such layer"}


def test_a_shape_that_is_not_a_share_is_named(dense: Dense, sent: Weights) -> None:
    dense.down_proj.weight = torch.nn.Parameter(torch.zeros(HIDDEN, 3))
    (line,) = said(prove(dense, sent))
    assert line.startswith("down_proj.weight: the sent tensors do not add up to the shape (6, 3)")


def test_a_layer_that_is_divided_in_a_way_of_its_own_is_told_and_no_difference(sent: Weights) -> None:
    class Sinks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sinks = torch.nn.Parameter(torch.zeros(2))

    verdict = prove(Sinks(), {"sinks": torch.ones(4)})
    assert verdict.differences == ()
    assert list(verdict.unknown) == ["sinks"]


def test_a_quantised_layer_is_told_and_no_difference(dense: Dense, sent: Weights) -> None:
    dense.down_proj.quant_method = layers.Fp8LinearMethod()
    verdict = prove(dense, {**sent, "down_proj.weight": torch.randn(6, 8)})
    assert verdict.differences == ()
    assert set(verdict.unknown.values()) == {"it is quantized by Fp8LinearMethod"}


def test_tied_weights_need_to_be_sent_once_only(dense: Dense, sent: Weights) -> None:
    dense.lm_head = dense.embed
    assert said(prove(dense, sent)) == []
    assert said(prove(dense, {**sent, "lm_head.weight": sent["embed.weight"]})) == []


def test_a_head_that_is_no_longer_tied_is_named(dense: Dense, sent: Weights) -> None:
    dense.lm_head = layers.VocabParallelEmbedding(10, 16, HIDDEN, RANK, RANKS)
    assert said(prove(dense, sent)) == ["lm_head.weight: no sent tensor belongs to this parameter"]


def test_names_that_the_engine_maps_are_followed(dense: Dense, sent: Weights) -> None:
    model = torch.nn.ModuleDict({"language": dense})
    model.packed_modules_mapping = dense.packed_modules_mapping
    model.hf_to_vllm_mapper = SimpleNamespace(
        apply=lambda weights: ((f"language.{name}", weight) for name, weight in weights if name != "left_out")
    )
    assert prove(model, {**sent, "left_out": torch.ones(3)}) == Verdict(7, (), {})


def test_a_part_keeps_its_name_where_the_engine_maps_it_to_the_whole(dense: Dense, sent: Weights) -> None:
    """vLLM from 0.25.1 on sets an attribute on the weights that it maps so, which the name alone could not have."""

    class Stacking:
        def apply(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
            for name, weight in weights:
                weight.shard_id = "q"
                yield name.replace("q_proj", "qkv_proj"), weight

        def get_unstacked_mapper(self) -> SimpleNamespace:
            return SimpleNamespace(apply=lambda weights: weights)

    dense.hf_to_vllm_mapper = Stacking()
    assert prove(dense, sent) == Verdict(7, (), {})


def test_a_layer_with_an_adapter_around_it_is_found_by_its_own_name(dense: Dense, sent: Weights) -> None:
    dense.down_proj = torch.nn.ModuleDict({"base_layer": dense.down_proj})  # type: ignore[assignment]
    assert said(prove(dense, sent)) == []
    with_base = {name.replace("down_proj.", "down_proj.base_layer."): tensor for name, tensor in sent.items()}
    assert said(prove(dense, with_base)) == []


# Experts.

Names = tuple[str, str, str]
HUGGING_FACE = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = ("w1", "w3", "w2")


class Experts(torch.nn.Module):
    def __init__(self, layer: layers.FusedMoE) -> None:
        super().__init__()
        self.experts = layer


def of_experts(names: Names = HUGGING_FACE) -> Weights:
    gate, up, down = names
    shapes = {gate: (4, HIDDEN), up: (4, HIDDEN), down: (HIDDEN, 4)}
    return {
        f"experts.{number}.{name}.weight": torch.randn(shape) for number in range(4) for name, shape in shapes.items()
    }


def holding(sent: Weights, numbers: list[int], method: Any, names: Names = HUGGING_FACE) -> Experts:
    layer = layers.FusedMoE(numbers, 4, HIDDEN, 4, method)
    gate, up, down = names
    gates = [torch.cat([sent[f"experts.{n}.{gate}.weight"], sent[f"experts.{n}.{up}.weight"]]) for n in numbers]
    w13 = torch.stack(gates)
    w2 = torch.stack([sent[f"experts.{n}.{down}.weight"] for n in numbers])
    if isinstance(method, layers.AscendUnquantizedFusedMoEMethod):
        w13, w2 = w13.transpose(1, 2), w2.transpose(1, 2)
    layer.w13_weight.data.copy_(w13)
    layer.w2_weight.data.copy_(w2)
    return Experts(layer)


@pytest.mark.parametrize(
    "method",
    [layers.UnquantizedFusedMoEMethod(), layers.AscendUnquantizedFusedMoEMethod(), layers.IMAGE_METHOD],
    ids=["vLLM's", "vllm-ascend's", "that of the published image"],
)
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [2, 3], [3, 0]], ids=["all", "the last", "in another order"])
@pytest.mark.parametrize("names", [HUGGING_FACE, MIXTRAL])
def test_experts_of_this_rank_are_compared_and_those_of_others_left(
    method: Any, numbers: list[int], names: Any
) -> None:
    sent = of_experts(names)
    model = holding(sent, numbers, method, names)
    assert prove(model, sent) == Verdict(2, (), {})
    model.experts.w2_weight.data[1, 0, 0] += 1
    assert said(prove(model, sent)) == [f"experts.{numbers[1]}.{names[2]}.weight: the engine holds other values"]


def test_experts_of_another_rank_are_recognised() -> None:
    sent = of_experts()
    model = holding(sent, [2, 3], layers.AscendUnquantizedFusedMoEMethod())
    model.experts.w2_weight.data[0] = sent["experts.1.down_proj.weight"].T
    assert said(prove(model, sent)) == [
        "experts.2.down_proj.weight: the engine holds the tensor that was sent as experts.1.down_proj.weight"
    ]


def test_experts_that_were_not_transposed_are_recognised() -> None:
    sent = of_experts()
    model = holding(sent, [0, 1], layers.AscendUnquantizedFusedMoEMethod())
    down = model.experts.w2_weight.data
    down[0] = sent["experts.0.down_proj.weight"].reshape(down[0].shape)
    assert said(prove(model, sent)) == ["experts.0.down_proj.weight: the engine holds the sent tensor transposed"]


@pytest.mark.parametrize("turned", [False, True], ids=["outputs first", "inputs first"])
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [1, 3]])
def test_experts_that_a_checkpoint_has_in_one_are_taken_apart(turned: bool, numbers: list[int]) -> None:
    sent = of_experts()
    model = holding(sent, numbers, layers.AscendUnquantizedFusedMoEMethod())
    gates = [torch.cat([sent[f"experts.{n}.gate_proj.weight"], sent[f"experts.{n}.up_proj.weight"]]) for n in range(4)]
    downs = [sent[f"experts.{n}.down_proj.weight"] for n in range(4)]
    fused = {"experts.gate_up_proj": torch.stack(gates), "experts.down_proj": torch.stack(downs)}
    if turned:
        fused = {name: tensor.transpose(1, 2).contiguous() for name, tensor in fused.items()}
    assert said(prove(model, fused)) == []


# Copies of a latent projection.


@pytest.fixture
def latent() -> tuple[layers.MLAAttention, Weights]:
    attention = layers.MLAAttention(heads=4, latent=5, keys=3, values=2, rank=RANK, ranks=RANKS)
    weight = torch.randn(4 * 5, 5)
    attention.kv_b_proj.weight.data.copy_(weight.chunk(2)[1])
    heads = weight.view(4, 5, 5)[2:]
    attention.impl.W_UK_T = heads[:, :3].clone()
    attention.impl.W_UV = heads[:, 3:].transpose(1, 2).clone()
    return attention, {"kv_b_proj.weight": weight}


def test_the_copies_that_are_multiplied_with_are_compared(latent: tuple[layers.MLAAttention, Weights]) -> None:
    assert prove(*latent) == Verdict(3, (), {})


def test_copies_that_nothing_multiplies_with_are_not_compared(latent: tuple[layers.MLAAttention, Weights]) -> None:
    """vLLM's layer has some of its own from 0.26 on, and vllm-ascend has others."""
    attention, sent = latent
    for name in ("W_UV", "W_UK_T"):
        attention.register_parameter(name, torch.nn.Parameter(torch.zeros(2, 5, 3)))
    assert prove(attention, sent) == Verdict(3, (), {})


@pytest.mark.parametrize("name", ["W_UV", "W_UK_T"])
def test_a_stale_copy_is_named(latent: tuple[layers.MLAAttention, Weights], name: str) -> None:
    attention, sent = latent
    prove(attention, sent)
    later = {"kv_b_proj.weight": torch.randn(20, 5)}
    attention.kv_b_proj.weight.data.copy_(later["kv_b_proj.weight"].chunk(2)[1])
    heads = later["kv_b_proj.weight"].view(4, 5, 5)[2:]
    other = "W_UK_T" if name == "W_UV" else "W_UV"
    setattr(attention.impl, other, heads[:, :3] if other == "W_UK_T" else heads[:, 3:].transpose(1, 2))
    verdict = prove(attention, later)
    assert [(each.parameter, each.found) for each in verdict.differences] == [
        (f"impl.{name}", "the engine holds the same values as before this sync")
    ]


# Texts of a proof that a user reads.

STALE = Difference("qkv_proj.weight", "q_proj.weight", "the engine holds the same values as before this sync")


def many(count: int) -> Verdict:
    return Verdict(9, tuple(Difference(f"{number}.weight", f"{number}.weight", "gone") for number in range(count)), {})


def test_an_engine_without_differences_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(3, (), {})
    verdict.require()
    assert str(verdict) == "the engine holds them bit for bit"
    assert capsys.readouterr().err == ""


def test_what_was_left_out_is_told_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(3, (), {"sinks": "no idea"})
    verdict.require()
    assert str(verdict) == "the engine holds them bit for bit, except for 1 not compared"
    assert "could not compare 1 tensor, the first of which is sinks: no idea" in capsys.readouterr().err


def test_the_error_names_the_first_differences_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_NPU_MANIFEST_DIR", raising=False)
    with pytest.raises(WeightSyncError, match=r"differences \(7\): 0\.weight: gone; .*4\.weight: gone and 2 more"):
        many(7).require()


def test_all_of_them_are_on_a_page_beside_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "manifests"
    monkeypatch.setenv("VERL_NPU_MANIFEST_DIR", str(folder))
    verdict = Verdict(9, (STALE, *many(7).differences), {"sinks": "no idea"})
    with pytest.raises(WeightSyncError) as raised:
        verdict.require()
    (page,) = folder.glob("weights-*.txt")
    assert str(page) in str(raised.value)
    text = page.read_text()
    assert "- q_proj.weight -> qkv_proj.weight\n  the engine holds the same values as before this sync" in text
    assert all(f"- {number}.weight -> {number}.weight" in text for number in range(7))
    assert "- sinks: no idea" in text


def test_a_folder_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VERL_NPU_MANIFEST_DIR", str(tmp_path / "file"))
    with pytest.raises(
        WeightSyncError, match=r"q_proj\.weight: the engine holds the same values .*could not be written"
    ):
        Verdict(9, (STALE,), {}).require()


@pytest.mark.parametrize("captures", [True, False], ids=["with graphs", "without"])
def test_what_a_graph_of_a_real_npu_may_read_where_it_no_longer_is_is_told(
    captures: bool, dense: Dense, sent: Weights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells which addresses a graph of a real NPU reads, so this is a warning."""
    # An earlier test of this process may have loaded the virtual torch_npu, which does tell.
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    for again in (False, True):
        begun = Proof(dense, captures)
        for name, tensor in sent.items():
            begun.expect(name, tensor)
        if again:
            dense.norm.weight.data = dense.norm.weight.data.clone()
        verdict = begun.conclude()
        verdict.require()
        told = "1 weight of the rollout engine moved in memory after its first weight sync" in capsys.readouterr().err
        assert (verdict.moved, told) == ((("norm.weight",), True) if again and captures else ((), False))


@pytest.mark.parametrize(
    ("before", "lost", "changed"),
    [(5, ["Dispatcher.experts"], ()), (4, [], ("Dispatcher.experts",)), (None, [], ("Dispatcher.experts",))],
    ids=["before the sync", "before and in the sync", "in the sync"],
)
def test_a_plain_tensor_that_changed_ends_the_job_unless_the_sync_wrote_it(
    before: int | None,
    lost: list[str],
    changed: tuple[str, ...],
    dense: Dense,
    sent: Weights,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of the weights is written by each sync, so it says nothing."""
    held = [{} if before is None else {"Dispatcher.experts": torch.tensor([before])}]
    held.append({"Dispatcher.experts": torch.tensor([5]), "AscendMLAImpl.W_UV": torch.tensor([6])})
    monkeypatch.setattr(proof, "changed_since_wake_up", iter(held).__next__)
    verdict = prove(dense, sent)
    assert ([each.parameter for each in verdict.differences], verdict.changed) == (lost, changed)


def test_tensors_that_nothing_keeps_in_sleep_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Verdict(9, (), {}, unprotected=("Dispatcher.experts",)).require()
    assert "nothing keeps these tensors of the rollout engine" in capsys.readouterr().err


def test_memory_that_cannot_be_read_is_a_difference(dense: Dense, sent: Weights) -> None:
    class Asleep(torch.nn.Parameter):
        def cpu(self, *args: object, **kwargs: object) -> torch.Tensor:
            raise RuntimeError("the memory at 0x1 is not mapped\nand more")

        detach = to = lambda self, *args: self

    begun = Proof(dense)
    for name, tensor in sent.items():
        begun.expect(name, tensor)
    dense.norm.weight = Asleep(dense.norm.weight.data)
    assert said(begun.conclude()) == [
        "norm.weight: the engine's tensor cannot be read: the memory at 0x1 is not mapped"
    ]


def test_a_weight_that_the_engine_has_no_longer_is_named(dense: Dense, sent: Weights) -> None:
    begun = Proof(dense)
    for name, tensor in sent.items():
        begun.expect(name, tensor)
    del dense.norm.bias
    dense.norm.bias = None
    assert said(begun.conclude()) == ["norm.bias: the engine no longer has this tensor"]
