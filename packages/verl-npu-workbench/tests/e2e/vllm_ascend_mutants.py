"""FOLDER MODE: hand over weights in every wrong way that follows to the real vllm-ascend on a virtual NPU, whose
graphs were captured before.

Prints a line of JSON for each way: the proof's verdict, the verdict of the comparison of a replay with eager mode
alone, and whether the engine answers as it should. The model is DeepSeek-V3 with one dense layer and one of experts.
One weight is in FRACTAL_NZ. After each way everything is restored, and handed over rightly.
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Weights = dict[str, torch.Tensor]
Load = Callable[[Weights], object]
Way = Callable[[Any, Weights, Load], None]
KIND, NZ = "deepseek_v3", 29
DOWN = "model.layers.0.mlp.down_proj.weight"
UP, GATE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
OUT, OTHER = "model.layers.1.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj.weight"
EXPERT, EXPERTS = "model.layers.1.mlp.experts.1.down_proj.weight", "model.layers.1.mlp.experts.w13_weight"
LATENT = "model.layers.0.self_attn.kv_b_proj.weight"
STALE = "they still read its old address"
OLD = "the same values as before this sync"
ASLEEP = "a_copy_to_a_sleeping_address"


def without(sent: Weights, *names: str) -> Weights:
    return {name: tensor for name, tensor in sent.items() if name not in names}


def owner(model: Any, name: str) -> tuple[Any, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def parameter_like(held: Any, data: torch.Tensor) -> torch.nn.Parameter:
    made = torch.nn.Parameter(data, requires_grad=False)
    vars(made).update(vars(held))
    return made


def a_new_tensor(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    model.get_parameter(DOWN).data = sent[DOWN].clone()


def a_new_parameter(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    module, leaf = owner(model, DOWN)
    setattr(module, leaf, parameter_like(module.weight, sent[DOWN].clone()))


def what_was_sent_itself(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    model.get_parameter(DOWN).data = sent[DOWN]


def assigned_by_load_state_dict(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    model.load_state_dict({DOWN: sent[DOWN].clone()}, strict=False, assign=True)


def a_cast_to_a_new_tensor(model: Any, sent: Weights, load: Load) -> None:
    load(sent)
    held = model.get_parameter(DOWN)
    held.data = held.data.double().float()


def a_new_module(model: Any, sent: Weights, load: Load) -> None:
    path = DOWN.removesuffix(".weight")
    parent, leaf = owner(model, path)
    old = getattr(parent, leaf)
    new = copy.copy(old)
    new._parameters = {"weight": parameter_like(old.weight, old.weight.data.clone())}
    setattr(parent, leaf, new)
    load(sent)


def an_old_module(model: Any, sent: Weights, load: Load) -> None:
    parent, leaf = owner(model, DOWN.removesuffix(".weight"))
    old = getattr(parent, leaf)
    new = copy.copy(old)
    new._parameters = {"weight": parameter_like(old.weight, old.weight.data.clone())}
    setattr(parent, leaf, new)
    load(without(sent, DOWN))
    old.weight.data.copy_(sent[DOWN])


def a_missed_layer(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))


def half_of_a_fused_weight(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, UP))


def two_layers_exchanged(model: Any, sent: Weights, load: Load) -> None:
    load({**sent, OUT: sent[OTHER], OTHER: sent[OUT]})


def a_view_of_freed_memory(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    weak = importlib.import_module("torch_npu")._C._weak_ref_tensor
    model.get_parameter(DOWN).data = weak(sent[DOWN].clone())


def a_view_of_a_bucket_that_is_filled_again(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, DOWN))
    bucket = sent[DOWN].clone()
    model.get_parameter(DOWN).data = bucket.view(bucket.shape)
    bucket.copy_(sent[GATE].T)


def a_transposed_expert(model: Any, sent: Weights, load: Load) -> None:
    load({**sent, EXPERT: sent[EXPERT].T.contiguous().view(sent[EXPERT].shape)})


def a_missed_expert(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, EXPERT))


def experts_in_new_memory(model: Any, sent: Weights, load: Load) -> None:
    load(sent)
    module, leaf = owner(model, EXPERTS)
    setattr(module, leaf, parameter_like(module.w13_weight, module.w13_weight.data.clone()))


def bytes_of_nd_in_nz(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, OUT))
    model.get_parameter(OUT).data.untyped_storage().copy_(sent[OUT].contiguous().untyped_storage())


def copies_that_were_not_made_again(model: Any, sent: Weights, load: Load) -> None:
    load(without(sent, LATENT))
    model.get_parameter(LATENT).data.copy_(sent[LATENT])


def copies_that_were_made_anew(model: Any, sent: Weights, load: Load) -> None:
    load(sent)
    for impl in latents(model):
        impl.W_UV, impl.W_UK_T = impl.W_UV.clone(), impl.W_UK_T.clone()


def latents(model: Any) -> list[Any]:
    impls = [getattr(module, "impl", None) for module in model.modules()]
    return list({id(impl): impl for impl in impls if hasattr(impl, "W_UV")}.values())


@dataclass(frozen=True)
class Mutant:
    """One wrong way, and how it is reported."""

    way: Way
    name: str
    """The name that the proof must report."""
    words: str
    compared: bool
    """True if the comparison of a replay with eager mode sees it, at once or after the next sync: an error that
    only a graph computes."""


MUTANTS = [
    Mutant(a_new_tensor, DOWN, STALE, True),
    Mutant(a_new_parameter, DOWN, STALE, True),
    Mutant(what_was_sent_itself, DOWN, STALE, True),
    Mutant(assigned_by_load_state_dict, DOWN, STALE, True),
    Mutant(a_cast_to_a_new_tensor, DOWN, STALE, True),
    Mutant(a_new_module, DOWN, STALE, True),
    Mutant(an_old_module, DOWN, OLD, True),
    Mutant(a_missed_layer, DOWN, OLD, False),
    Mutant(half_of_a_fused_weight, UP, OLD, False),
    Mutant(two_layers_exchanged, OUT, f"was sent as {OTHER}", False),
    Mutant(a_view_of_freed_memory, DOWN, "cannot be read", True),
    Mutant(a_view_of_a_bucket_that_is_filled_again, DOWN, "other values", True),
    Mutant(a_transposed_expert, EXPERT, "transposed", False),
    Mutant(a_missed_expert, EXPERT, OLD, False),
    Mutant(experts_in_new_memory, EXPERTS, STALE, True),
    Mutant(bytes_of_nd_in_nz, OUT, "other values", False),
    Mutant(copies_that_were_not_made_again, LATENT, OLD, False),
    Mutant(copies_that_were_made_anew, "impl.W_UV", STALE, True),
]


class Kept:
    """The memory of everything that a model computes with."""

    def __init__(self, model: Any) -> None:
        self._modules = [(module, dict(module._modules), dict(module._parameters)) for module in model.modules()]
        self._parameters = [(held, held.data, dict(vars(held))) for held in model.parameters()]
        self._copies = [(impl, impl.W_UV, impl.W_UK_T) for impl in latents(model)]

    def put_back(self) -> None:
        for module, modules, parameters in self._modules:
            module._modules.update(modules)
            module._parameters.update(parameters)
        for held, data, attributes in self._parameters:
            held.data = data
            vars(held).update(attributes)
        for impl, *copies in self._copies:
            impl.W_UV, impl.W_UK_T = copies


def lay_out_one_in_nz() -> None:
    """Lay a weight out in FRACTAL_NZ before the graphs are captured."""
    import torch_npu
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    load = NPUModelRunner.load_model

    def loaded(runner: Any) -> None:
        load(runner)
        held = runner.model.get_parameter(OUT)
        torch.npu.config.allow_internal_format = True
        held.data = torch_npu.npu_format_cast(held.data, NZ)
        torch.npu.config.allow_internal_format = False

    NPUModelRunner.load_model = loaded


class Mutated:
    """An engine that receives weights."""

    def __init__(self, folder: Path, mode: str) -> None:
        from vllm_ascend_engine import Engine
        from vllm_ascend_tokens import expected

        self.engine = Engine(folder, "float32", mode)
        self.folder, self.model = folder, self.engine.runner.model
        self.expected = {name: expected(folder / name) for name in "ab"}
        self.kept = Kept(self.model)

    def told(self, do: Callable[[], object]) -> str:
        """Return the result, or the error as text."""
        try:
            return str(do())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            gc.collect()

    def right(self, weights: str) -> bool:
        try:
            return bool(self.engine.generate()["tokens"] == self.expected[weights])
        except Exception:  # The engine gives no answer then.
            return False

    def hand_over(self, weights: str, way: Way | None = None) -> str:
        from vllm_ascend_tokens import hand_over

        return self.told(lambda: hand_over(self.engine.runner, self.folder / weights, way and self.by(way)))

    def by(self, way: Way) -> Callable[[Any, Load], None]:
        def taken(sent: Any, load: Load) -> None:
            with torch.no_grad():
                way(self.model, dict(sent), lambda some: load(list(some.items())))

        return taken

    def compared(self, way: Way | None, weights: str) -> str:
        """Return the verdict of the comparison alone on a sync; empty if there is none."""
        from safetensors.torch import load_file

        from verl_npu.features.weight_sync.engines.replayed import compare_next_replay

        sent = {name: each.npu() for name, each in load_file(self.folder / weights / "model.safetensors").items()}
        if way is None:
            self.model.load_weights(list(sent.items()))
        else:
            self.by(way)(sent.items(), self.model.load_weights)
        del sent
        compare_next_replay(self.engine.runner)
        self.engine.llm.reset_prefix_cache()
        said = self.told(self.engine.generate)
        return "" if said.startswith("{") else said

    def restored(self) -> dict[str, object]:
        self.kept.put_back()
        proof = self.hand_over("a")
        self.engine.llm.reset_prefix_cache()
        return {"proof": proof, "right": self.right("a")}

    def mutate(self, way: Way) -> dict[str, object]:
        proof = self.hand_over("b", way)
        self.engine.llm.reset_prefix_cache()
        right = self.right("b")
        next_right = right and not self.compared(None, "a") and self.right("a")
        restored = [self.restored()]
        compared = self.compared(way, "b") or self.compared(None, "a")
        said = {"way": way.__name__, "proof": proof, "right": right, "next right": next_right, "compared": compared}
        return {**said, "restored": [*restored, self.restored()]}

    def a_copy_to_a_sleeping_address(self) -> dict[str, object]:
        self.engine.llm.sleep(2)
        proof = self.hand_over("b")
        self.engine.llm.wake_up()
        restored = self.restored()
        return {"way": ASLEEP, "proof": proof, "restored": [restored]}


def main() -> None:
    """Hand over in all ways."""
    from vllm_ascend_tokens import make

    folder, mode = Path(sys.argv[1]), sys.argv[2]
    for seed, name in enumerate("ab"):
        make(KIND, folder / name, seed)
    lay_out_one_in_nz()
    mutated = Mutated(folder, mode)
    for answer in (
        {"way": "nothing", "restored": [mutated.restored()]},
        *map(mutated.mutate, (m.way for m in MUTANTS)),
    ):
        print("ANSWER " + json.dumps(answer), flush=True)
    print("ANSWER " + json.dumps(mutated.a_copy_to_a_sleeping_address()), flush=True)


if __name__ == "__main__":
    main()
