"""KIND FOLDER: corrupt weights for the real vllm-ascend on two virtual NPUs on their way, in every way that follows.

Prints a line of JSON with the proof's verdict on each.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

KINDS: dict[str, dict[str, Any]] = {
    "qwen2_tied": {"model": "qwen2", "changes": {"tie_word_embeddings": True}},
    "qwen3_moe": {"model": "qwen3_moe"},
    "qwen3_moe_ep": {"model": "qwen3_moe", "expert_parallel": True},
    "deepseek_v3": {"model": "deepseek_v3"},
}
Weights = dict[str, torch.Tensor]
Apply = Callable[[Any, int], None]


def nothing(model: Any, rank: int) -> None:
    """Leave the model as it was loaded."""


@contextlib.contextmanager
def as_it_is(model: Any) -> Iterator[None]:
    """Load as the engine loads."""
    yield


@dataclass(frozen=True)
class Case:
    """One corruption."""

    name: str
    source: str
    """The name under which the corrupted weight was sent, which the proof has to give."""
    words: str
    """The words that the proof has to say of it."""
    ranks: tuple[int, ...] = (0, 1)
    """The ranks on which it must be seen."""
    kinds: tuple[str, ...] = tuple(KINDS)
    given: Callable[[Weights], Weights] = dict
    """Changes the weights that the loader gets."""
    around: Callable[[Any], contextlib.AbstractContextManager[None]] = as_it_is
    after: Apply = nothing
    """Changes the model after loading."""


def lost(name: str) -> Callable[[Weights], Weights]:
    return lambda sent: {key: value for key, value in sent.items() if key != name}


def exchanged(first: str, second: str) -> Callable[[Weights], Weights]:
    def given(sent: Weights) -> Weights:
        return {**sent, first: sent[second], second: sent[first]}

    return given


def instead_of(name: str, other: str) -> Callable[[Weights], Weights]:
    return lambda sent: {**sent, name: sent[other]}


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Weights], Weights]:
    return lambda sent: {**sent, name: change(sent[name])}


def at(path: str, change: Callable[[torch.Tensor], None], *ranks: int) -> Apply:
    """Return a change of a parameter in place, on these ranks."""

    def after(model: Any, rank: int) -> None:
        if rank in ranks:
            with torch.no_grad():
                change(model.get_parameter(path))

    return after


def on_the_other_rank(path: str) -> Callable[[Any], contextlib.AbstractContextManager[None]]:
    """Return a change that makes the engine's own loader take the other rank's share for one layer."""

    @contextlib.contextmanager
    def around(model: Any) -> Iterator[None]:
        layer = model.get_submodule(path)
        rank = layer.tp_rank
        layer.tp_rank = 1 - rank
        parameters = [each for each in layer.parameters() if hasattr(each, "tp_rank")]
        for parameter in parameters:
            parameter.tp_rank = 1 - rank
        try:
            yield
        finally:
            layer.tp_rank = rank
            for parameter in parameters:
                parameter.tp_rank = rank

    return around


@contextlib.contextmanager
def without_refreshed_copies(model: Any) -> Iterator[None]:
    """Load without the wrapper that makes MLA's copies anew."""
    patched = vars(model).pop("load_weights")
    try:
        yield
    finally:
        model.load_weights = patched


def swap(tensor: torch.Tensor, first: int, second: int) -> None:
    tensor[[first, second]] = tensor[[second, first]].clone()


def transpose(tensor: torch.Tensor) -> None:
    tensor.copy_(tensor.transpose(-1, -2).contiguous().view(tensor.shape))


def flip_a_bit(tensor: torch.Tensor) -> None:
    tensor.view(torch.int32).view(-1)[77] ^= 1


def round_off(tensor: torch.Tensor) -> None:
    tensor.copy_(tensor.to(torch.bfloat16))


LAYER = "model.layers.1"
QKV, OUT = f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.self_attn.o_proj"
Q, K, V = (f"{LAYER}.self_attn.{each}_proj.weight" for each in "qkv")
EXPERTS = f"{LAYER}.mlp.experts"
EMBEDDING = "model.embed_tokens.weight"
STALE = "the same values as before this sync"
OTHER = "other values"
DENSE, MOE = ("qwen2_tied",), ("qwen3_moe", "qwen3_moe_ep")
PLAIN = (*DENSE, *MOE)
MLA = ("deepseek_v3",)


def expert(number: int, projection: str) -> str:
    return f"{EXPERTS}.{number}.{projection}_proj.weight"


CASES = [
    Case("lost: queries", Q, STALE, kinds=PLAIN, given=lost(Q)),
    Case("lost: a norm", "model.norm.weight", STALE, given=lost("model.norm.weight")),
    Case("lost: the embedding", EMBEDDING, STALE, given=lost(EMBEDDING)),
    Case("lost: outputs of attention", f"{OUT}.weight", STALE, given=lost(f"{OUT}.weight")),
    Case("lost: a bias", Q.replace("weight", "bias"), STALE, kinds=DENSE, given=lost(Q.replace("weight", "bias"))),
    Case("lost: the router", f"{LAYER}.mlp.gate.weight", STALE, kinds=MOE, given=lost(f"{LAYER}.mlp.gate.weight")),
    Case("lost: one expert", expert(1, "up"), STALE, kinds=("qwen3_moe",), given=lost(expert(1, "up"))),
    Case("lost: an expert of rank 0", expert(1, "up"), STALE, (0,), ("qwen3_moe_ep",), lost(expert(1, "up"))),
    Case("exchanged: keys and values", K, f"was sent as {V}", kinds=PLAIN, given=exchanged(K, V)),
    Case(
        "exchanged: two layers",
        OUT + ".weight",
        "was sent as model.layers.0",
        given=exchanged(OUT + ".weight", OUT.replace("1", "0") + ".weight"),
    ),
    Case(
        "exchanged: gate and up",
        expert(0, "gate"),
        f"was sent as {expert(0, 'up')}",
        kinds=("qwen3_moe",),
        given=exchanged(expert(0, "gate"), expert(0, "up")),
    ),
    Case(
        "swapped: experts of one rank",
        expert(0, "down"),
        f"was sent as {expert(1, 'down')}",
        (0,),
        ("qwen3_moe_ep",),
        exchanged(expert(0, "down"), expert(1, "down")),
    ),
    Case(
        "another rank's expert",
        expert(3, "gate"),
        f"was sent as {expert(0, 'gate')}",
        (1,),
        ("qwen3_moe_ep",),
        instead_of(expert(3, "gate"), expert(0, "gate")),
    ),
    Case(
        "swapped: in the engine's own memory",
        expert(1, "gate"),
        "was sent as",
        kinds=("qwen3_moe",),
        after=at(f"{EXPERTS}.w13_weight", lambda each: swap(each, 1, 2), 0, 1),
    ),
    Case("wrong rank: queries", Q, "holds the share of rank", kinds=PLAIN, around=on_the_other_rank(QKV)),
    Case("wrong rank: values", V, "holds the share of rank", kinds=PLAIN, around=on_the_other_rank(QKV)),
    Case(
        "wrong rank: outputs of attention", f"{OUT}.weight", "holds the share of rank", around=on_the_other_rank(OUT)
    ),
    Case(
        "wrong rank: MLP",
        f"{LAYER}.mlp.up_proj.weight",
        "holds the share of rank",
        kinds=DENSE,
        around=on_the_other_rank(f"{LAYER}.mlp.gate_up_proj"),
    ),
    Case(
        "wrong rank: shared experts",
        f"{LAYER}.mlp.shared_experts.down_proj.weight",
        "holds the share of rank",
        kinds=MLA,
        around=on_the_other_rank(f"{LAYER}.mlp.shared_experts.down_proj"),
    ),
    Case(
        "wrong rank: latent",
        f"{LAYER}.self_attn.kv_b_proj.weight",
        "holds the share of rank",
        kinds=MLA,
        around=on_the_other_rank(f"{LAYER}.self_attn.kv_b_proj"),
    ),
    Case(
        "transposed: before the loader",
        f"{LAYER}.self_attn.o_proj.weight",
        OTHER,
        kinds=PLAIN,
        given=changed(f"{OUT}.weight", lambda each: each.T.contiguous().view(each.shape)),
    ),
    Case(
        "transposed twice: experts",
        expert(0, "down"),
        "transposed",
        (0,),
        ("qwen3_moe_ep",),
        after=at(f"{EXPERTS}.w2_weight", transpose, 0),
    ),
    Case(
        "transposed twice: experts of both ranks",
        expert(2, "gate"),
        OTHER,
        kinds=("qwen3_moe",),
        after=at(f"{EXPERTS}.w13_weight", transpose, 0, 1),
    ),
    Case("stale copies", f"{LAYER}.self_attn.kv_b_proj.weight", STALE, kinds=MLA, around=without_refreshed_copies),
    Case(
        "rounded: before the loader",
        f"{OUT}.weight",
        "as if rounded to bfloat16",
        given=changed(f"{OUT}.weight", lambda each: each.bfloat16().float()),
    ),
    Case(
        "rounded: in the engine",
        f"{OUT}.weight",
        "as if rounded to bfloat16",
        (1,),
        after=at(f"{OUT}.weight", round_off, 1),
    ),
    Case(
        "a missing part: zeros",
        f"{OUT}.weight",
        "only zeros",
        (0,),
        after=at(f"{OUT}.weight", torch.Tensor.zero_, 0),
    ),
    Case(
        "a missing part: memory that slept",
        "model.norm.weight",
        "only NaN",
        (1,),
        after=at("model.norm.weight", lambda each: each.fill_(float("nan")), 1),
    ),
    Case(
        "a missing part: keys",
        K,
        "only zeros",
        (1,),
        DENSE,
        after=at(f"{QKV}.weight", lambda each: each[64:96].zero_(), 1),
    ),
    Case("one bit", f"{OUT}.weight", OTHER, (0,), after=at(f"{OUT}.weight", flip_a_bit, 0)),
    Case("two rows exchanged", EMBEDDING, OTHER, (1,), after=at(EMBEDDING, lambda each: swap(each, 3, 4), 1)),
    Case("one row further", EMBEDDING, OTHER, given=changed(EMBEDDING, lambda each: each.roll(1, 0))),
    Case("scaled", "model.norm.weight", OTHER, given=changed("model.norm.weight", lambda each: each * 2)),
    Case(
        "a router in another order",
        f"{LAYER}.mlp.gate.weight",
        OTHER,
        kinds=MOE,
        given=changed(f"{LAYER}.mlp.gate.weight", lambda each: each.roll(1, 0)),
    ),
    Case(
        "the bias of the router lost",
        f"{LAYER}.mlp.gate.e_score_correction_bias",
        STALE,
        kinds=MLA,
        given=lost(f"{LAYER}.mlp.gate.e_score_correction_bias"),
    ),
]


class Extension:
    """The methods that vLLM adds to its worker."""

    model_runner: Any
    rank: int

    def sync(self, folder: str, seed: int, name: str) -> dict[str, Any]:
        """Sync other weights into the engine, with the corruption of that name or none, and prove them."""
        from safetensors.torch import load_file

        from verl_npu.features.weight_sync.engines.processing import refresh_copies_on_load
        from verl_npu.features.weight_sync.engines.proof import Proof

        model = self.model_runner.model
        for module in model.modules():
            for leaf in ("w13_weight", "w2_weight"):
                if hasattr(module, leaf):
                    # vllm-ascend makes new parameters when it processes them; verl gives those the loader again.
                    getattr(module, leaf).weight_loader = module.weight_loader
        refresh_copies_on_load(model)
        saved = load_file(Path(folder) / "model.safetensors")
        generator = torch.Generator().manual_seed(seed)
        sent = {key: torch.randn(value.shape, generator=generator) * 0.08 for key, value in sorted(saved.items())}
        case = next((case for case in CASES if case.name == name), Case(name, "", ""))
        proof = Proof(model)
        for key, value in sent.items():
            proof.expect(key, value.npu())
        given = list(case.given(sent).items())
        with case.around(model):
            for begin in range(0, len(given), 10):
                model.load_weights((key, value.npu()) for key, value in given[begin : begin + 10])
        case.after(model, self.rank)
        verdict = proof.conclude()
        found = [[each.parameter, each.source, each.found] for each in verdict.differences]
        return {"found": found, "compared": verdict.compared, "unknown": dict(verdict.unknown)}


def main() -> None:
    """Serve the model, sync it once rightly before each corruption, and print the findings of each rank."""
    sys.path.insert(0, str(Path(__file__).parent))
    from vllm_ascend_tokens import engine, make

    kind, folder = sys.argv[1], Path(sys.argv[2])
    given = KINDS[kind]
    make(given["model"], folder, **given.get("changes", {}))
    served = engine(
        folder,
        tensor_parallel_size=2,
        enable_expert_parallel=given.get("expert_parallel", False),
        worker_extension_cls="vllm_ascend_proof.Extension",
    )
    seed = 0
    for case in CASES:
        if kind in case.kinds:
            for name in ("nothing", case.name):
                seed += 1
                print(
                    "ANSWER " + json.dumps([name, served.collective_rpc("sync", args=(str(folder), seed, name))]),
                    flush=True,
                )


if __name__ == "__main__":
    main()
