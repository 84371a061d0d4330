"""KIND FOLDER MODE: corrupt each hidden tensor of the real vllm-ascend on two virtual NPUs after a deep sleep.

A hidden tensor is neither a parameter nor a buffer, and lies in memory that slept. Between sleep and weight sync, one
of them is changed at a time. The program prints the proof's words on each as a line of JSON, and then the engine's
answers after a sleep in which nothing was changed. If the feature engine_sleep is off, it prints these answers only.
"""

from __future__ import annotations

import gc
import json
import sys
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401  # starts verl-npu, in each worker too

PACKAGES = ("vllm", "vllm_ascend")


def hidden(runner: Any) -> dict[int, tuple[torch.Tensor, set[str]]]:
    """Return the hidden tensors by their address, each with the names under which it was reached.

    This walks from the model runner and the modules of vLLM and vllm-ascend, along attributes, containers, and
    closures. The feature does otherwise: it searches the heap.
    """
    asleep = spans("weights")
    seen: dict[int, Any] = {}
    found: dict[int, tuple[torch.Tensor, set[str]]] = {}
    registered: set[int] = set()
    waiting: deque[Any] = deque((each, "") for each in (runner, *map(sys.modules.get, sorted(sys.modules))))
    while waiting:
        one, name = waiting.popleft()
        kind = type(one)
        if issubclass(kind, torch.Tensor):
            if kind is torch.Tensor and one.device.type == "npu" and within(asleep, address_of(one)):
                found.setdefault(address_of(one), (one, set()))[1].add(name)
            continue
        if id(one) in seen or foreign(one):
            continue
        seen[id(one)] = one
        if issubclass(kind, torch.nn.Module):
            held = [*one._parameters.values(), *one._buffers.values()]
            registered.update(address_of(each) for each in held if each is not None and each.device.type == "npu")
        waiting.extend(inside(one, name))
    return {address: each for address, each in found.items() if address not in registered}


def foreign(one: object) -> bool:
    """Return whether an object is plain, or a module or class of another package."""
    kind = type(one)
    if issubclass(kind, (types.ModuleType, type)):
        package = vars(one).get("__name__" if issubclass(kind, types.ModuleType) else "__module__", "")
        return str(package).partition(".")[0] not in PACKAGES
    return kind in (str, bytes, int, float, complex, bool, type(None))


def inside(one: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield all that an object holds, each with a name."""
    kind = type(one)
    if issubclass(kind, dict):
        yield from ((each, name) for each in list(dict.values(one)))
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        yield from ((each, name) for each in list(one))
    elif issubclass(kind, types.MethodType):
        yield one.__self__, name
    elif issubclass(kind, types.FunctionType):
        yield from ((each, name) for each in gc.get_referents(*(one.__closure__ or ())))
    owner = one.__name__ if issubclass(kind, (types.ModuleType, type)) else kind.__qualname__
    slots = [each for base in kind.__mro__ for each in vars(base).get("__slots__", ())]
    for key in slots:
        try:
            yield object.__getattribute__(one, key), f"{owner}.{key}"
        except AttributeError:
            continue
    try:
        held = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return
    yield from ((each, f"{owner}.{key}") for key, each in list(held.items()))


def address_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def spans(tag: str) -> list[tuple[int, int]]:
    """Return the ranges of addresses in the allocator's ledger that have this tag."""
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    held = CaMemAllocator.get_instance().pointer_to_data.items()
    return [(begin, begin + each.handle[1]) for begin, each in held if each.tag == tag]


def within(ranges: list[tuple[int, int]], address: int) -> bool:
    return any(begin <= address < end for begin, end in ranges)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def choose_all_to_all() -> None:
    """Make the engine choose the dispatcher that it chooses on an A3. The virtual NPU is an A2."""
    from vllm_ascend import ascend_forward_context as context
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    def chosen(*_: object, **__: object) -> object:
        return context.MoECommType.ALLTOALL

    if hasattr(NPUModelRunner, "_select_moe_comm_method"):
        NPUModelRunner._select_moe_comm_method = chosen
    for module in list(sys.modules.values()):
        if not foreign(module) and "select_moe_comm_method" in vars(module):
            module.select_moe_comm_method = chosen


class Extension:
    """The methods that vLLM adds to its worker."""

    model_runner: Any
    _hidden: list[tuple[torch.Tensor, list[str], torch.Tensor]]

    def look(self, all_to_all: bool) -> dict[str, Any]:
        """Find the hidden tensors. Tell also what of the memory that sleeps no tensor of the heap holds."""
        if all_to_all:
            choose_all_to_all()
        found = hidden(self.model_runner).values()
        self._hidden = [(each, sorted(names), bytes_of(each).cpu()) for each, names in found]
        gc.unfreeze()
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        # A fake tensor of the compiler has no memory.
        real = [each for each in tensors if type(each) is torch.Tensor or issubclass(type(each), torch.nn.Parameter)]
        addresses = [address_of(each) for each in real if each.device.type == "npu"]
        blocks = spans("weights")
        reads = [
            operand[1] for tasks in sys.modules["torch_npu"].__captured__() for _, given in tasks for operand in given
        ]
        unheld = [each for each in blocks if not any(each[0] <= address < each[1] for address in addresses)]
        return {
            "hidden": [names for _, names, _ in self._hidden],
            "blocks": len(blocks),
            "unheld": len(unheld),
            "read": sum(within(blocks, address) for address in reads),
            "read unheld": sum(within(unheld, address) for address in reads),
        }

    def sync(self, folder: str, number: int | None) -> str:
        """Change the hidden tensor of this number, or none, hand over the weights, and return the proof's words."""
        from vllm_ascend_tokens import hand_over

        from verl_npu.errors import WeightSyncError
        from verl_npu.features.weight_sync.engines import proof

        warned: list[str] = []
        proof.warn = warned.append
        spoiled = self._hidden[number] if number is not None and number < len(self._hidden) else None
        if spoiled is not None:
            memory = bytes_of(spoiled[0])
            memory.copy_(memory.cpu() ^ 1)
        try:
            error = None
            hand_over(self.model_runner, Path(folder))
        except WeightSyncError as raised:
            error = str(raised)
        if spoiled is not None:
            memory.copy_(spoiled[2])
        # As text, because vLLM sends no translatable messages.
        return json.dumps({"names": spoiled[1] if spoiled is not None else [], "error": error, "warned": warned})


def main() -> None:
    """Serve the model, and print the words of the proof."""
    import verl_npu

    sys.path.insert(0, str(Path(__file__).parent))
    from vllm_ascend_tokens import Answers, engine, expected, make

    kind, folder = sys.argv[1], Path(sys.argv[2])
    make(kind.removesuffix("_ep"), folder)
    served = engine(
        folder,
        None if sys.argv[3] == "NONE" else sys.argv[3],
        worker_extension_cls="vllm_ascend_hidden.Extension",
        enable_sleep_mode=True,
        tensor_parallel_size=2,
        enable_expert_parallel=kind.endswith("_ep"),
    )
    answers = Answers(served)

    def cycle(number: int | None) -> list[str]:
        served.sleep(level=2)
        served.wake_up(["weights"])
        said: list[str] = served.collective_rpc("sync", args=(str(folder), number))
        served.wake_up(["kv_cache"])
        served.reset_prefix_cache()
        return said

    looked = served.collective_rpc("look", args=(kind.endswith("_ep"),))
    begun = {"ranks": looked, "awake": answers.tokens(), "expected": expected(folder)}
    print("ANSWER " + json.dumps(begun), flush=True)
    if "engine_sleep" not in verl_npu.environment.DISABLE.read():
        for number in range(max(len(rank["hidden"]) for rank in looked)):
            print("ANSWER " + json.dumps({"spoiled": cycle(number)}), flush=True)
    print("ANSWER " + json.dumps({"proofs": cycle(None), "tokens": answers.tokens()}), flush=True)


if __name__ == "__main__":
    main()
