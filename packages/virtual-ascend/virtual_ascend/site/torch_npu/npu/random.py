"""Random numbers. Every NPU has its own generator, whose state is a seed and an offset (16 bytes), as on a real
NPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from virtual_ascend.device.extension import extension

from torch_npu.npu.device import _get_device_index, device_count

if TYPE_CHECKING:
    from torch_npu.npu.device import Place

_C = extension()


class _DefaultGenerators:
    """`torch.npu.default_generators[i]`, looked up late because the number of visible NPUs is not fixed at import."""

    def __len__(self) -> int:
        return int(device_count())

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < len(self):
            raise IndexError(f"npu:{index} does not exist: {len(self)} NPUs are visible")
        generator: torch.Generator = _C.default_generator(index)
        return generator

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _DefaultGenerators()


def _index(device: Place) -> int:
    # As in torch_npu, only the number matters, so that Megatron's "cuda" is also an NPU.
    if isinstance(device, str):
        device = torch.device(device)
    return int(_get_device_index(device.index if isinstance(device, torch.device) else device))


def get_rng_state(device: Place = "npu") -> torch.Tensor:
    """Return the state of an NPU's random number generator: a tensor of dtype uint8 and shape [16]."""
    return default_generators[_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Place = "npu") -> None:
    """Set the state of an NPU's random number generator. `new_state` must have dtype uint8 and shape [16].

    Raises:
        RuntimeError: `new_state` is not such a state.
    """
    default_generators[_index(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all NPUs' generators."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all NPUs' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current NPU's generator. Do nothing if no NPU is visible."""
    if device_count() > 0:
        default_generators[_get_device_index()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all NPUs' generators."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current NPU's generator with a random number."""
    default_generators[_get_device_index()].seed()


def seed_all() -> None:
    """Seed all NPUs' generators with one random number."""
    value = default_generators[_get_device_index()].seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """Return the seed of the current NPU's generator."""
    return int(default_generators[_get_device_index()].initial_seed())
