"""Faults of vllm-ascend with graphs and new weights that users reported, shown on virtual NPUs with its own methods.

Each scene runs methods of one revision, taken from its history in `VERL_NPU_UPSTREAMS` (`vllm-ascend.git`), around a
graph of plain torch: weights are processed, a graph is captured, new weights are handed over and processed again, and
the graph is replayed. `docs/records/engine-faults.json` has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from .released import Revision


class Unquantized:
    """A stand-in for vLLM's class for layers without scales, which processes nothing."""

    def process_weights_after_loading(self, layer: object) -> None:
        """Do nothing."""

    def _maybe_pad_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def update_attrs(self) -> None:
        """Do nothing."""


class Between(Unquantized):
    """A stand-in for vLLM's class for experts, whose own processing vllm-ascend skips."""


def given(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).npu()


def weight(seed: int, *shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(given(seed, *shape), requires_grad=False)


Compute = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Scene:
    """An engine's layer, and the hand-over of its weights."""

    compute: Compute
    """Computes the layer's answer."""
    hand_over: Callable[[int], None]
    """Gives it the weights of a seed, as an engine does after a step of training."""


def answers(ascend: ModuleType, made: Scene) -> dict[str, bool]:
    """Return whether the layer answers by new weights, with a graph that was captured before, and without."""
    with torch.no_grad():
        graph = ascend.npu.NPUGraph()
        with ascend.npu.graph(graph):
            out = made.compute()
        graph.replay()
        old = out.clone()
        made.hand_over(2)
        graph.replay()
        replayed = out.clone()
        eager = made.compute()
    return {"eager": not torch.equal(eager, old), "graph": torch.equal(replayed, eager)}


HEADS, KEYS, VALUES, LATENT = 2, 4, 8, 16


def latent(revision: Revision, ascend: ModuleType) -> Scene:
    """Return a scene in which MLA multiplies with copies of kv_b_proj."""
    names = {
        "Base": Unquantized,
        "torch_npu": ascend,
        "UnquantizedLinearMethod": Unquantized,
        "AscendW8A8LinearMethod": int,
        "ACL_FORMAT_FRACTAL_ND": 2,
        "ACL_FORMAT_FRACTAL_NZ": 29,
        "is_enable_nz": lambda *_: False,
        "maybe_trans_nz": lambda tensor: tensor,
        "logger": SimpleNamespace(warning_once=lambda text: None),
    }
    impl = revision("attention/mla_v1.py", "AscendMLAImpl", ("process_weights_after_loading",), names)()
    shape = (HEADS * (KEYS + VALUES), LATENT)
    impl.kv_b_proj = SimpleNamespace(weight=weight(1, *shape), quant_method=Unquantized())
    vars(impl).update(kv_lora_rank=LATENT, num_heads=HEADS, qk_nope_head_dim=KEYS, v_head_dim=VALUES)
    vars(impl).update(fused_qkv_a_proj=None, enable_mlapo=False, fa_quant_layer=False, layer_sharding_kwargs=[])
    impl.process_weights_after_loading(torch.float32)
    x = given(7, HEADS, 3, KEYS)

    def hand_over(seed: int) -> None:
        impl.kv_b_proj.weight.data.copy_(given(seed, *shape))
        impl.process_weights_after_loading(torch.float32)

    return Scene(lambda: (x @ impl.W_UK_T) @ impl.W_UV, hand_over)


def scaled(revision: Revision, ascend: ModuleType) -> Scene:
    """Return a scene in which weights and scales of mxfp8 are transposed into memory of their own."""
    names = {"Base": Unquantized, "F": torch.nn.functional, "logger": None}
    methods = ("process_weights_after_loading", "restore_weights_for_rl_loading")
    found = revision("quantization/methods/w8a8_mxfp8.py", "AscendW8A8MXFP8DynamicLinearMethod", methods, names)()
    layer = SimpleNamespace(weight=weight(1, 6, 8), weight_scale=weight(3, 6, 4))
    found.process_weights_after_loading(layer)
    x = given(7, 3, 8)

    def compute() -> torch.Tensor:
        scales = layer.weight_scale.transpose(0, 1).reshape(6, 4).repeat_interleave(2, 1)
        return x @ (layer.weight * scales.T)

    def hand_over(seed: int) -> None:
        found.restore_weights_for_rl_loading(layer)
        layer.weight.data.copy_(given(seed, 6, 8))
        layer.weight_scale.data.copy_(given(seed + 2, 6, 4))
        found.process_weights_after_loading(layer)

    return Scene(compute, hand_over)


def transposed_before_the_cast(revision: Revision, ascend: ModuleType) -> Scene:
    """Return a scene with matmul and all_reduce in one operator, on a layer whose weight is cast to FRACTAL_NZ."""
    cast = {
        "Base": Unquantized,
        "torch_npu": SimpleNamespace(npu_format_cast=lambda tensor, number: tensor.clone()),
        "is_enable_nz": lambda *_: True,
        "ACL_FORMAT_FRACTAL_NZ": 29,
    }
    linear = Revision(revision.history, "v0.11.0")(
        "ops/linear.py", "AscendUnquantizedLinearMethod", ("process_weights_after_loading",), cast
    )()
    of_one_rank = SimpleNamespace(npu_mm_all_reduce_base=lambda x, second, group, bias: x @ second)
    names = {"Base": Unquantized, "torch_npu": of_one_rank}
    methods = ("update_attrs", "apply_impl")
    op = revision("ops/linear_op.py", "MatmulAllreduceRowParallelOp", methods, names)()
    vars(op).update(
        layer=SimpleNamespace(weight=weight(1, 8, 8)), bias=None, skip_bias_add=False, tp_rank=0, tp_size=2
    )
    vars(op).update(input_is_parallel=True, reduce_results=True, hcomm_info="")
    op.update_attrs()
    linear.process_weights_after_loading(op.layer)
    x = given(7, 3, 8)
    return Scene(lambda: op.apply_impl(x)[0], lambda seed: op.layer.weight.data.copy_(given(seed, 8, 8)))


def cast_ahead(revision: Revision, ascend: ModuleType) -> Scene:
    """Return a scene in which a router multiplies with its weight in float32, cast once for all steps."""
    names = {
        "Base": Unquantized,
        "_should_keep_nd_for_310p_weight": lambda weight: True,
        "maybe_trans_nz": lambda tensor: tensor,
    }
    methods = ("process_weights_after_loading",)
    method = revision("ops/linear.py", "AscendUnquantizedLinearMethod", methods, names)()
    layer = SimpleNamespace(weight=weight(1, 8, 8), precast_fp32_weight=True, prefix="gate")
    layer.weight.data = layer.weight.data.bfloat16()
    method.process_weights_after_loading(layer)
    x = given(7, 3, 8)

    def hand_over(seed: int) -> None:
        layer.weight.data.copy_(given(seed, 8, 8))
        method.process_weights_after_loading(layer)

    return Scene(lambda: x @ layer.weight_fp32.T, hand_over)


def replaced(module: Any, name: str, data: torch.Tensor) -> None:
    """Replace a parameter as vLLM's helper does: the new one takes over the old one's attributes."""
    made = torch.nn.Parameter(data, requires_grad=False)
    vars(made).update(vars(getattr(module, name)))
    setattr(module, name, made)


HIDDEN, ROWS = 8, 6
EXPERT_NAMES = {
    "Base": Unquantized,
    "UnquantizedFusedMoEMethod": Between,
    "envs_ascend": SimpleNamespace(VLLM_ASCEND_ENABLE_FUSED_MC2=False, VLLM_ASCEND_ENABLE_NZ=0),
    "maybe_trans_nz": lambda tensor: tensor,
    "get_ascend_config": lambda: SimpleNamespace(weight_nz_mode=0, enable_fused_mc2=0),
    "CaMemAllocator": SimpleNamespace(get_instance=lambda: SimpleNamespace(wake_up=lambda tags: None)),
    "replace_parameter": replaced,
    "AscendDeviceType": SimpleNamespace(_310P="310P"),
    "get_ascend_device_type": lambda: "A2",
}


def experts(w13: torch.nn.Parameter, w2: torch.nn.Parameter) -> torch.nn.Module:
    model = torch.nn.Module()
    model.experts = torch.nn.Module()
    model.experts.w13_weight, model.experts.w2_weight = w13, w2
    return model


def computed(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute with the first expert, as vllm-ascend lays it out."""
    gate, up = (x @ model.experts.w13_weight[0]).chunk(2, -1)
    return (gate * up) @ model.experts.w2_weight[0]


def worker_of(revision: Revision, model: torch.nn.Module) -> Any:
    """Return the worker that wakes the engine up."""
    worker = revision("worker/worker.py", "NPUWorker", ("wake_up",), EXPERT_NAMES)()
    sizes = SimpleNamespace(hidden_size=HIDDEN)
    config = SimpleNamespace(hf_text_config=sizes, hf_config=sizes)
    worker.vllm_config = SimpleNamespace(model_config=config, quant_config=None, speculative_config=None)
    vars(worker).update(model_runner=SimpleNamespace(model=model), _sleep_saved_buffers={})
    return worker


def experts_processed_again(revision: Revision, ascend: ModuleType) -> Scene:
    """Return a scene in which experts are transposed back when the engine wakes up, and once more after the load."""
    path, owner = "ops/fused_moe/fused_moe.py", "AscendUnquantizedFusedMoEMethod"
    names = {**EXPERT_NAMES, "Base": Between}
    method = revision(path, owner, ("process_weights_after_loading",), names)()
    shapes = (2, 2 * ROWS, HIDDEN), (2, HIDDEN, ROWS)
    model = experts(weight(1, *shapes[0]), weight(3, *shapes[1]))
    method.process_weights_after_loading(model.experts)
    worker, x = worker_of(revision, model), given(7, 3, HIDDEN)

    def hand_over(seed: int) -> None:
        worker.wake_up(["weights"])
        model.experts.w13_weight.data.copy_(given(seed, *shapes[0]))
        model.experts.w2_weight.data.copy_(given(seed + 2, *shapes[1]))
        method.process_weights_after_loading(model.experts)

    return Scene(lambda: computed(model, x), hand_over)


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    thread: str
    revision: str
    scene: Callable[[Revision, ModuleType], Scene]
    right: bool
    """The graph answers by the new weights."""
    eager: bool = True


FAULTS = [
    Fault("#7473", "v0.11.0", latent, False),
    Fault("#7473", "v0.13.0", latent, False),
    Fault("#7473", "bc2c300f62^", latent, False),
    Fault("#7473", "bc2c300f62", latent, True),
    Fault("#7715", "6ce1dc162a^", latent, False),
    Fault("#7715", "6ce1dc162a", latent, True),
    Fault("#7715", "v0.18.0", latent, True),
    Fault("#13902", "v0.23.0", scaled, False),
    Fault("#13902", "v0.25.1rc1", scaled, False),
    Fault("#13902", "8f89feb9db^", scaled, False),
    Fault("#13902", "8f89feb9db", scaled, True),
    Fault("#5747", "v0.11.0", transposed_before_the_cast, True, eager=False),
    Fault("#5747", "09682e0751^", transposed_before_the_cast, True, eager=False),
    Fault("#5747", "09682e0751", transposed_before_the_cast, True),
    Fault("#15666", "v0.22.1rc1", cast_ahead, False),
    Fault("#15666", "v0.25.1rc1", cast_ahead, False),
    # Of the tensors that the thread lists, these are right: transposed twice, they are where they were.
    Fault("#16322", "v0.18.0", experts_processed_again, True),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.thread} at {fault.revision}" for fault in FAULTS])
def test_a_reported_fault_is_seen_and_its_fix_too(fault: Fault, history: Path, ascend: ModuleType) -> None:
    found = answers(ascend, fault.scene(Revision(history, fault.revision), ascend))
    assert found == {"eager": fault.eager, "graph": fault.right}


AWAKE = [("v0.18.0", False), ("v0.23.0", False), ("032b3f4a04^", False), ("032b3f4a04", True)]


@pytest.mark.parametrize(("revision", "right"), AWAKE, ids=str)
def test_experts_wake_up_as_they_slept_or_not(revision: str, right: bool, history: Path, ascend: ModuleType) -> None:
    """#11548 and #12226: an engine that gets no new weights computes with shapes that do not fit."""
    model = experts(weight(1, 2, HIDDEN, 2 * ROWS), weight(3, 2, ROWS, HIDDEN))
    x = given(7, 3, HIDDEN)
    before = computed(model, x)
    worker_of(Revision(history, revision), model).wake_up(["weights"])
    if right:
        assert torch.equal(computed(model, x), before)
    else:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            computed(model, x)


@pytest.mark.parametrize(("revision", "right"), [("v0.13.0rc1", False), ("v0.13.0", True)], ids=str)
def test_experts_stay_as_they_are_when_the_cache_wakes_up(revision: str, right: bool, history: Path) -> None:
    """#5567: weights wake up and are loaded, then the cache does."""
    model, x = experts(weight(1, 2, HIDDEN, 2 * ROWS), weight(3, 2, ROWS, HIDDEN)), given(7, 3, HIDDEN)
    before = computed(model, x)
    worker_of(Revision(history, revision), model).wake_up(["kv_cache"])
    if right:
        assert torch.equal(computed(model, x), before)
    else:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            computed(model, x)


LOADED = [("v0.13.0", False), ("v0.18.0", False), ("bdab23475a^", False), ("bdab23475a", True)]


@pytest.mark.parametrize(("revision", "right"), LOADED, ids=str)
def test_experts_keep_their_loader_or_not(revision: str, right: bool, history: Path) -> None:
    """#13337: the loading code asks a weight for its loader."""
    found = Revision(history, revision)
    path = "ops/fused_moe/routed_experts.py" if revision.startswith("bdab") else "ops/fused_moe/fused_moe.py"
    names = {**EXPERT_NAMES, "Base": Between}
    method = found(path, "AscendUnquantizedFusedMoEMethod", ("process_weights_after_loading",), names)()
    model = experts(weight(1, 2, 2 * ROWS, HIDDEN), weight(3, 2, HIDDEN, ROWS))
    for held in model.parameters():
        held.weight_loader = torch.Tensor.copy_
    method.process_weights_after_loading(model.experts)
    worker_of(found, model).wake_up(["weights"])
    new = given(5, 2, 2 * ROWS, HIDDEN)
    if right:
        model.experts.w13_weight.weight_loader(model.experts.w13_weight.data, new)
        assert torch.equal(model.experts.w13_weight, new)
    else:
        with pytest.raises(AttributeError, match="'Parameter' object has no attribute 'weight_loader'"):
            model.experts.w13_weight.weight_loader(model.experts.w13_weight.data, new)


class Loads:
    """A stand-in for vLLM's loader of a model."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def load_weights(self, w13: torch.Tensor, w2: torch.Tensor) -> None:
        self.module.experts.w13_weight.data.copy_(w13)
        self.module.experts.w2_weight.data.copy_(w2)


PROPOSED = "4f2d876ab0"
"""The revision of the open vllm-ascend#7498."""


@pytest.mark.parametrize(("revision", "right"), [("v0.13.0", False), ("v0.18.0", False), (PROPOSED, True)], ids=str)
def test_experts_of_an_engine_that_did_not_sleep_are_loaded_or_not(
    revision: str, right: bool, history: Path, ascend: ModuleType
) -> None:
    """#5915: only waking up lays them out as a checkpoint has them."""
    found, owner = Revision(history, revision), "AscendUnquantizedFusedMoEMethod"
    names = {**EXPERT_NAMES, "Base": Between}
    method = found("ops/fused_moe/fused_moe.py", owner, ("process_weights_after_loading",), names)()
    shapes = (2, 2 * ROWS, HIDDEN), (2, HIDDEN, ROWS)
    model = experts(weight(1, *shapes[0]), weight(3, *shapes[1]))
    method.process_weights_after_loading(model.experts)
    loader = Loads(model)
    if right:
        methods = ("_preprocess", "load_weights")
        path, owner = "patch/worker/patch_loader.py", "AutoWeightsLoaderWithPreprocess"
        loader = found(path, owner, methods, {"Base": Loads})(model)
    new, x = [given(seed, *shape) for seed, shape in zip((5, 6), shapes, strict=True)], given(7, 3, HIDDEN)
    if not right:
        with pytest.raises(RuntimeError, match="must match the size of tensor"):
            loader.load_weights(*new)
        return

    def hand_over(_: int) -> None:
        loader.load_weights(*new)
        method.process_weights_after_loading(model.experts)

    assert answers(ascend, Scene(lambda: computed(model, x), hand_over)) == {"eager": True, "graph": True}
    expected = experts(*(torch.nn.Parameter(each.transpose(1, 2).contiguous(), requires_grad=False) for each in new))
    assert torch.equal(computed(model, x), computed(expected, x))
