"""What the patches use of upstream's objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..engines.sglang import Server
from ..engines.vllm import LLM, AsyncWorker
from ..transport.drawing import Weight
from ..transport.metadata import Entry

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Actor", "Broadcast", "CheckpointEngine", "Communicator", "Sender", "Socket", "Trainer", "Worker"]


class Worker(Protocol):
    """A worker of verl's recipes. It is a trainer or a rollout, and has only the attributes of what it is."""

    config: WorkerConfig
    _is_actor: bool
    _is_offload_param: bool
    _weights_info: list[Entry]
    actor_module_fsdp: torch.nn.Module
    actor_module: Sequence[torch.nn.Module]
    rollout: Rollout
    rollout_device_mesh: DeviceMesh

    def _get_actor_params(self) -> dict[str, torch.Tensor]: ...

    def _get_actor_params_generator(self) -> Iterable[Weight]: ...


class WorkerConfig(Protocol):
    """The configuration of a worker."""

    rollout: RolloutConfig


class RolloutConfig(Protocol):
    """The part of it that is about the rollout."""

    name: str
    update_weights_bucket_megabytes: int


class Rollout(Protocol):
    """A rollout: over vLLM it has an `inference_engine`, over SGLang an `_engine`."""

    inference_engine: LLM | AsyncWorker
    _engine: Server | None


class Trainer(Protocol):
    """The trainer of a recipe, in the driver or in an actor of its own."""

    device_name: str
    actor_wg: WorkerGroup
    rollout_wg: WorkerGroup


class WorkerGroup(Protocol):
    """The workers of one role."""

    workers: list[Actor]


class Actor(Protocol):
    """A handle of a Ray actor."""

    @property
    def __ray_call__(self) -> RemoteMethod:
        """Calls any function in the actor's process, with the actor as first argument."""
        ...


class RemoteMethod(Protocol):
    """A method of a Ray actor."""

    def remote(self, function: Callable[..., object], *args: object) -> object:
        """Start the call and return the reference of its result."""
        ...


class CheckpointEngine(Protocol):
    """verl's HCCLCheckpointEngine."""

    group_name: str
    rank: int
    world_size: int
    rebuild_group: bool
    topic: str
    socket: Socket
    pyhccl: Communicator | None


class Broadcast(Protocol):
    """verl's BroadcastOperation, which moves one bucket of that engine."""

    rank: int
    pyhccl: Communicator
    bucket: torch.Tensor
    metadata: object
    socket: Socket
    topic: str
    _task: Awaitable[None]

    def _run(self) -> object:
        """Move the bucket."""
        ...


class Communicator(Protocol):
    """vllm-ascend's PyHccl."""

    device: torch.device

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        ...


class Socket(Protocol):
    """A socket of ZeroMQ."""

    def setsockopt(self, option: int, value: int) -> object: ...

    def poll(self, timeout: int) -> int: ...

    def send_string(self, text: str, flags: int = 0) -> object: ...

    def send_pyobj(self, value: object, flags: int = 0) -> object: ...

    def recv_string(self) -> str: ...

    def recv_pyobj(self) -> object: ...


class Sender(Protocol):
    """verl's BucketedWeightSender, which hands weights to the worker of a rollout engine."""

    socket: Socket
    zmq_handle: str
