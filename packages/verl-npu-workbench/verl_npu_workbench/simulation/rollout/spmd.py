"""The engine for verl 796871d7. Its workers support only two engines, so this engine replaces vLLM in their process.

verl's sharding managers send the weights, gather the prompts of a replica's ranks, and distribute the responses.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from verl_npu.errors import RolloutError

from .engine import adapter_of

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch.distributed.device_mesh import DeviceMesh
    from verl import DataProto

    from .weights import Weights

NAME = "virtual"
_BUILD = "_build_rollout"


def offer(module: ModuleType) -> None:
    """Make the workers of `module` build the engine for `rollout.name=virtual`."""
    worker = module.ActorRolloutRefWorker
    original = vars(worker)[_BUILD]

    @functools.wraps(original)
    def build(self: Any, *args: object, **kwargs: object) -> object:
        settings = self.config.rollout
        if settings.name != NAME:
            return original(self, *args, **kwargs)
        with _in_vllms_place(settings):
            return original(self, *args, **kwargs)

    setattr(worker, _BUILD, build)


class _Model:
    """A stand-in for vLLM's model, as verl's sharding managers use it."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Receive a complete weight sync. Raises RolloutError if the weights do not match the model."""
        arrived: set[str] = set()

        def noted() -> Iterator[tuple[str, torch.Tensor]]:
            for name, value in weights:
                arrived.add(name)
                yield name, value

        self._weights.take(noted())
        self._weights.complete()
        return arrived


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A stand-in for TensorLoRARequest, as verl uses it."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    peft_config: dict[str, object]
    lora_tensors: dict[str, torch.Tensor]


class _Engine:
    """A stand-in for vLLM's engine, as verl's sharding managers use it."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        runner = SimpleNamespace(model=_Model(weights))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=SimpleNamespace(model_runner=runner)))
        self.llm_engine = SimpleNamespace(model_executor=executor, add_lora=self._add)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Do nothing, because this engine never frees its memory."""

    def sleep(self, level: int = 1) -> None:
        """Release the weights until the next sync."""
        self._weights.release()

    def _add(self, adapter: _Adapter) -> None:
        self._weights.adapt(adapter.lora_tensors.items(), adapter_of(adapter.peft_config))


class _Rollout:
    """A stand-in for vLLMRollout, as verl uses it."""

    def __init__(
        self,
        model_path: str,
        config: DictConfig,
        tokenizer: object,
        model_hf_config: object,
        device_mesh: DeviceMesh,
        trust_remote_code: bool = False,
        **kwargs: object,
    ) -> None:
        from verl.utils import hf_processor

        from .answering import Answering

        processor = hf_processor(model_path, trust_remote_code=trust_remote_code)
        model: Any = SimpleNamespace(
            hf_config=model_hf_config, local_path=model_path, tokenizer=tokenizer, processor=processor
        )
        settings: Any = config
        self._answering = Answering(settings, model, device_mesh, int(os.environ.get("RANK", "0")))
        self.inference_engine = _Engine(self._answering.weights)
        _groups.mesh = device_mesh

    def generate_sequences(self, prompts: DataProto, **kwargs: object) -> DataProto:
        """Generate one response for each row. Raises RolloutError if no weights have been received since the weights
        were last released."""
        return self._answering.answer(prompts)


class _Served:
    """A stand-in for vLLMAsyncRollout. It always raises an error, because only vLLM has the servers of this mode."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RolloutError(
            subject="rollout.mode with the virtual rollout engine and this version of verl",
            expected="sync",
            found="async, which requires vLLM's own servers in this version of verl",
            fix="set actor_rollout_ref.rollout.mode=sync",
        )


class _Groups:
    """A stand-in for vLLM's parallel_state, as verl's sharding managers use it. It contains the ranks of a replica."""

    mesh: DeviceMesh | None = None

    def get_tensor_model_parallel_group(self) -> SimpleNamespace:
        """Return the group of ranks that process the same prompts."""
        return SimpleNamespace(device_group=None if self.mesh is None else self.mesh.get_group("infer_tp"))


_groups = _Groups()


def _nothing(*args: object, **kwargs: object) -> None:
    """Do nothing, because there is no vLLM to patch."""


@contextlib.contextmanager
def _in_vllms_place(settings: DictConfig) -> Iterator[None]:
    hijack = SimpleNamespace(hijack=_nothing)
    no: Callable[..., bool] = lambda **version: False  # noqa: E731
    stand_ins: dict[str, dict[str, object]] = {
        "verl.third_party.vllm": {"LLM": _Engine, "parallel_state": _groups},
        "verl.utils.vllm": {"TensorLoRARequest": _Adapter, "VLLMHijack": hijack, "is_version_ge": no},
        "verl.utils.vllm.patch": {"patch_vllm_moe_model_weight_loader": _nothing},
        "verl.workers.rollout.vllm_rollout": {"vLLMRollout": _Rollout, "vLLMAsyncRollout": _Served},
    }
    # These modules stay, because verl imports some of them in a weight sync.
    for name, members in stand_ins.items():
        sys.modules[name] = ModuleType(name, "The virtual rollout engine instead of vLLM.")
        vars(sys.modules[name]).update(members)
    settings.name = "vllm"
    try:
        yield
    finally:
        settings.name = NAME
