"""What a step of GRPO or PPO needs of an NPU, by hand: a formula that a person can check with a pencil.

It is for verl 0.6.1 with FSDP and models like Qwen2.5 and Qwen3 in packed sequences, and knows nothing of the plan's
code. P is the number of parameters, N the NPUs, T the tokens of a micro batch on one NPU, V the words, H the width.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Model", "Setting", "parameters"]

GIB = 2**30
MEMORY = {"a2": 60.96 * GIB, "a3": 61.27 * GIB}
"""vllm-ascend issue 1127 and sglang issue 29838: the capacity in out-of-memory errors."""
MARGIN = 0.10
"""Of the memory: how far a setting is away from it at least, so that no verdict hangs on a detail."""


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes in a model's config.json."""

    kind: str
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    words: int = 151936
    head: int = 128
    tied: bool = False
    experts: int = 0
    chosen: int = 0
    """Experts that a token goes through; `inner` is then the width of one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One job."""

    name: str
    model: Model
    npus: int
    prompt: int
    response: int
    micro: int = 1
    """Sequences in a micro batch of the update."""
    log_micro: int = 1
    """Sequences in a micro batch of the log-probabilities."""
    budget: int = 0
    """Tokens of an NPU in a micro batch of either; 0: they have so many sequences."""
    npu: str = "a2"
    strategy: str = "fsdp2"
    recompute: bool = True
    critic: bool = False
    critic_micro: int = 1
    reference: bool = False
    offload: bool = False
    """Weights and optimizer's state of actor and critic are on the host while they are not used."""
    ulysses: int = 1
    utilization: float = 0.5
    tensor: int = 2
    entropy: bool = False
    """Whether the loss has the entropy."""
    chunked: bool = False
    lora: int = 0


def parameters(model: Model) -> int:
    """Embedding and head, and in each layer four projections of the attention and three of the feed-forward part."""
    ends = model.words * model.hidden * (1 if model.tied else 2)
    return ends + model.layers * _layer(model)


def _layer(model: Model) -> int:
    attention = 2 * model.hidden * model.head * (model.heads + model.key_heads)
    return attention + 3 * model.hidden * model.inner * max(model.experts, 1) + model.hidden * model.experts


def _adapters(setting: Setting) -> int:
    """LoRA: two narrow matrices beside each of the seven projections of a layer."""
    model, width = setting.model, setting.model.head * setting.model.heads
    narrow = model.head * model.key_heads
    sides = (model.hidden + width) * 2 + (model.hidden + narrow) * 2 + (model.hidden + model.inner) * 3
    return setting.lora * sides * model.layers


def _trained(setting: Setting) -> int:
    return _adapters(setting) if setting.lora else parameters(setting.model)


def _tokens(setting: Setting, sequences: int) -> float:
    """T: what a token budget holds in whole sequences, or the sequences of a micro batch; shared by Ulysses."""
    length = setting.prompt + setting.response
    if setting.budget:
        sequences = max(setting.budget * setting.ulysses // length, 1)
    return sequences * length / setting.ulysses
