"""The NPU memory of a step of GRPO or PPO, by hand: a formula that a person can check with a pencil.

It is for verl 0.6.1 with FSDP and models like Qwen2.5 and Qwen3 in packed sequences, and shares nothing with the
plan's code. P is the number of parameters, N the NPUs, T the tokens of a micro batch on one NPU, V the vocabulary, H
the width, L the layers. Numbers in front of them are bytes: 2 for a number in bfloat16, 4 in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
MEMORY = {"a2": 60.96 * GIB, "a3": 61.27 * GIB}
"""vllm-ascend issue 1127 and sglang issue 29838: the capacity in out-of-memory errors."""
MARGIN = 0.10
"""The least distance of a setting from the memory, relative to it, so that no verdict depends on a detail."""


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes in a model's config.json."""

    kind: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int = 151936
    head: int = 128
    tied: bool = False
    experts: int = 0
    chosen: int = 0
    """The number of experts that a token goes through; `intermediate` is then the width of one."""


QWEN3_06B = Model("qwen3", 1024, 3072, 28, 16, 8, tied=True)
QWEN3_8B = Model("qwen3", 4096, 12288, 36, 32, 8)
QWEN25_7B = Model("qwen2", 3584, 18944, 28, 28, 4, vocabulary=152064)


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
    """The loss includes the entropy."""
    chunked: bool = False
    lora: int = 0
    loss: int = 8
    """The bytes for each logit at the peak of a loss without entropy."""


SEQUENCES = 256
"""The sequences of a step and of a mini batch, on all NPUs together."""


def parameters(model: Model) -> int:
    """Count embedding, head, and in each layer four projections of the attention and three of the feed-forward."""
    ends = model.vocabulary * model.hidden * (1 if model.tied else 2)
    return ends + model.layers * _layer(model)


def _layer(model: Model) -> int:
    attention = 2 * model.hidden * model.head * (model.heads + model.key_heads)
    return attention + 3 * model.hidden * model.intermediate * max(model.experts, 1) + model.hidden * model.experts


def _adapters(setting: Setting) -> int:
    """Count LoRA's parameters: two narrow matrices beside each of the seven projections of a layer."""
    model, width = setting.model, setting.model.head * setting.model.heads
    narrow = model.head * model.key_heads
    sides = (model.hidden + width) * 2 + (model.hidden + narrow) * 2 + (model.hidden + model.intermediate) * 3
    return setting.lora * sides * model.layers


def _tokens(setting: Setting, sequences: int) -> float:
    """Return T, the tokens of a micro batch; Ulysses divides them.

    With a token budget, verl makes as few micro batches as the tokens of a rank need, and divides its sequences evenly
    among them; T is that of the fullest, of sequences that are at most the greatest length.
    """
    length = setting.prompt + setting.response
    if not setting.budget:
        return sequences * length / setting.ulysses
    mine, budget = SEQUENCES * setting.ulysses // setting.npus, setting.budget * setting.ulysses
    numbers = range(1, -(-mine * length // budget) + 1)
    return max(-(-mine // number) * min(length, number * budget / mine) for number in numbers) / setting.ulysses


def _between_updates(setting: Setting) -> float:
    """Weights in float32 (fsdp_config.model_dtype) and AdamW's two numbers for each, sharded; nothing if offloaded."""
    trained = _adapters(setting) if setting.lora else parameters(setting.model)
    return 0 if setting.offload else (4 * parameters(setting.model) + 8 * trained) / setting.npus


def _critic(setting: Setting) -> int:
    """Count a critic's parameters: it has one number for a token in place of the head."""
    model = setting.model
    return parameters(model) - (0 if model.tied else model.vocabulary * model.hidden)


def _beside(setting: Setting, role: str) -> float:
    """Return the bytes that the other role, critic or actor, keeps between its updates."""
    if not setting.critic or setting.offload:
        return 0
    return _between_updates(setting) if role == "actor" else 12 * _critic(setting) / setting.npus


def _root(setting: Setting) -> int:
    """FSDP1 keeps the outermost part gathered in bfloat16 after its forward pass: embedding and head."""
    model = setting.model
    return 2 * model.vocabulary * model.hidden * (1 if model.tied else 2) if setting.strategy == "fsdp" else 0


def _log_probabilities(setting: Setting) -> float:
    """Return the larger of two moments.

    1. The logits in bfloat16 (2), and for the entropy, which verl 0.6.1 computes here whatever the loss needs, the
    probabilities, the logits and their exponentials in float32 (3 x 4): `entropy_from_logits`.
    2. FSDP2 gathers embedding and head (2 of V H) out of a buffer (2).
    """
    model, tokens = setting.model, _tokens(setting, setting.log_micro)
    rows = min(tokens, 2048) if setting.chunked else tokens
    logits = (2 * tokens + 12 * rows) * model.vocabulary
    ends = (2 + 2) * model.vocabulary * model.hidden * (1 if model.tied else 2)
    weights = 4 * parameters(model) / setting.npus if setting.offload else 0
    return _between_updates(setting) + weights + max(logits + _root(setting), ends)


def _update(setting: Setting, critic: bool) -> float:
    """Add weights, gradients, two numbers of AdamW in float32 and sharded (16 P / N) to the largest of three moments.

    1. The loss: the inputs of the layers (2 H of each, with recomputation), and the logits. In bfloat16 there are
    their gradient, two copies of it and the quotient (4 x 2), since verl divides them by the temperature in place
    in a view (`div_` in dp_actor.py; torch's CopySlices copies twice). With the entropy two (2 x 2), and in float32
    the logits, the probabilities, their product and the gradients of the three (6 x 4).
    2. The gradient of a layer: its weights and the next one's (2 + 2), the buffer that gathers them (2), its gradient
    (2) and that in float32 (4); of the head weights and gradient (2 + 2 of V H); and the layer's activations.
    FSDP1 gathers the embedding with the head, and has freed a layer's weights and activations when it
    reduces the gradient (2 + 2 + 4).
    3. The optimizer's step: torch's AdamW has the roots of one of its numbers for all parameters at once (4 P / N).
    """
    model = setting.model
    tokens = _tokens(setting, setting.critic_micro if critic else setting.micro)
    every = _critic(setting) if critic else parameters(model)
    trained = _adapters(setting) if setting.lora else every
    state = (4 * every + 12 * trained) / setting.npus
    other = _beside(setting, "actor" if critic else "critic")
    inputs = 2 * model.hidden * model.layers * tokens
    kept = inputs if setting.recompute else _computed(model) * model.layers * tokens
    loss = 0 if critic else (28 if setting.entropy else setting.loss) * model.vocabulary * tokens + _root(setting)
    gathered_ends = (0 if critic else 1) + (1 if setting.strategy == "fsdp" and not model.tied else 0)
    again = _computed(model) * tokens if setting.recompute else 0
    of_ends, of_layer = 4, 12
    if setting.lora:
        of_ends, of_layer = 2, 6  # adapters alone have gradients
    elif setting.strategy == "fsdp":
        of_layer, again = 8, 0
    gathered = of_ends * gathered_ends * model.vocabulary * model.hidden + of_layer * _layer(model)
    return state + other + max(kept + max(loss, gathered + again), 4 * trained / setting.npus)


def training(setting: Setting) -> float:
    """Return the bytes of tensors in a step that has a loss and one model: a step of fine-tuning."""
    return _update(setting, critic=False)


def _computed(model: Model) -> int:
    """Return the bytes that a layer keeps of a token for its gradient, in bfloat16.

    Inputs, normed inputs and their like after the attention (4 x 2 H); queries as projected, as normed and as turned,
    and the attention's result (4 x 2), keys and values alike (4 x 2); the attention's maxima and sums (64 for a head);
    both halves of the feed-forward part and their product (3 x 2), for each expert that is chosen, with its input and
    result (2 x 2 H).
    """
    attention = 8 * model.hidden + 8 * model.head * (model.heads + model.key_heads) + 64 * model.heads
    routed = 4 * model.hidden * model.chosen
    return attention + 6 * model.intermediate * max(model.chosen, 1) + routed


def _engine(setting: Setting) -> float:
    """vLLM takes gpu_memory_utilization of an NPU, and does not start if its weights in bfloat16 need more."""
    return max(setting.utilization * MEMORY[setting.npu], 2 * parameters(setting.model) / setting.tensor)


def phases(setting: Setting) -> dict[str, float]:
    """Return the bytes of tensors in the phases that can be the largest."""
    critic = _beside(setting, "critic")
    found = {
        "rollout": _engine(setting) + _between_updates(setting) + critic,
        "log-probabilities": _log_probabilities(setting) + critic,
        "update actor": _update(setting, critic=False),
    }
    if setting.critic:
        found["update critic"] = _update(setting, critic=True)
    return found


def needed(setting: Setting) -> float:
    """Return the bytes of the largest phase with the reserve. Only the trainer has fragments here."""
    engine = {"rollout": _engine(setting)}
    return max(with_reserve(setting, size, engine.get(phase, 0)) for phase, size in phases(setting).items())


def with_reserve(setting: Setting, size: float, of_engine: float = 0) -> float:
    """Return the bytes of a phase: tensors, 1 GiB for workspaces, 5 % for fragments outside the engine, and buffers.

    HCCL has 2 x 200 MB for each communicator: one of all ranks, and one of those that share a sequence.
    """
    buffers = (2 if setting.ulysses > 1 else 1) * 2 * 200 * 2**20
    return size + 2**30 + buffers + 0.05 * (size - of_engine)
