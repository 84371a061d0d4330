"""FRACTAL_NZ: the values stay the same, the bytes are in blocks, and code that moves bytes keeps their order."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from virtual_ascend.operators import layout
from virtual_ascend.testing import results, start_ranks

torch = pytest.importorskip("torch")

NZ, ND = 29, 2


@pytest.fixture
def ascend(npu: ModuleType) -> Iterator[ModuleType]:
    """Return our torch_npu, with formats of its own allowed."""
    found = importlib.import_module("torch_npu")
    found.npu.config.allow_internal_format = True
    yield found
    found.npu.config.allow_internal_format = False


def new(*shape: int, dtype: Any = None) -> torch.Tensor:
    return torch.randn(*shape).to(dtype or torch.float32).npu()


def in_blocks(plain: torch.Tensor) -> torch.Tensor:
    """Return the elements in the order of FRACTAL_NZ, by reshaping: (…, columns / 16, rows / 16, 16, 16)."""
    width = 32 if plain.element_size() == 1 else 16
    rows, columns = plain.shape[-2:]
    padded = torch.nn.functional.pad(plain, (0, -columns % width, 0, -rows % 16))
    blocks = padded.unflatten(-1, (-1, width)).unflatten(-3, (-1, 16))
    return blocks.movedim(-2, -4).reshape(-1) if plain.dim() == 2 else blocks.movedim(-2, -4).flatten()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory in its own order."""
    row = torch.empty(0, dtype=torch.uint8, device="npu")
    row.set_(tensor.untyped_storage())
    return row.cpu().view(tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("shape", [(32, 48), (16, 16), (17, 33), (2, 20, 40), (1, 5)])
def test_the_bytes_lie_in_blocks_and_the_values_are_what_they_were(
    ascend: ModuleType, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randint(-100, 100, shape).to(dtype).npu()
    packed = ascend.npu_format_cast(x, NZ)
    assert (ascend.get_npu_format(packed), ascend.get_npu_format(x)) == (NZ, ND)
    assert torch.equal(bytes_of(packed), in_blocks(x.cpu()))
    assert ascend.get_storage_size(packed) == in_blocks(x.cpu()).numel()
    assert (packed.shape, packed.stride()) == (x.shape, x.stride())
    assert torch.equal(packed, x)
    assert torch.equal(packed.cpu(), x.cpu())


def test_operators_read_the_values_of_all_and_of_parts(ascend: ModuleType) -> None:
    x, w = new(4, 32), new(48, 32)
    packed = ascend.npu_format_cast(w, NZ)
    assert torch.equal(torch.nn.functional.linear(x, packed), torch.nn.functional.linear(x, w))
    assert torch.equal(packed.t(), w.t())
    assert torch.equal(packed[5:9, 3:20] + 1, w[5:9, 3:20] + 1)
    assert packed[7, 9].item() == w[7, 9].item()
    assert torch.equal(torch.stack([packed, w]).sum(0), w * 2)
    assert torch.equal(ascend.npu_rms_norm(x, packed[0])[0], ascend.npu_rms_norm(x, w[0])[0])


def test_a_cast_back_and_a_clone_lie_as_their_strides_say(ascend: ModuleType) -> None:
    w = new(32, 32)
    packed = ascend.npu_format_cast(w, NZ)
    for plain in (ascend.npu_format_cast(packed, ND), packed.clone(), packed + 0):
        assert ascend.get_npu_format(plain) == ND
        assert torch.equal(bytes_of(plain), w.cpu().flatten())
    assert ascend.npu_format_cast(packed, NZ) is packed


def test_a_cast_in_place_takes_new_memory(ascend: ModuleType) -> None:
    w = torch.nn.Parameter(new(32, 32))
    before, address = w.detach().cpu(), w.data_ptr()
    assert ascend.npu_format_cast_(w, NZ) is w
    assert (ascend.get_npu_format(w), w.data_ptr() == address) == (NZ, False)
    assert torch.equal(w.detach().cpu(), before)


def test_the_gradient_of_a_cast_is_that_of_its_result(ascend: ModuleType) -> None:
    w = new(16, 16).requires_grad_()
    (ascend.npu_format_cast(w, NZ) * 3).sum().backward()
    assert torch.equal(w.grad, torch.full((16, 16), 3.0).npu())


def test_a_copy_of_all_is_converted(ascend: ModuleType) -> None:
    """torch_npu's copy_ does this: CopyKernel.cpp, copy_d2d_dtype and copy_h2d."""
    packed, other = ascend.npu_format_cast(new(32, 48), NZ), torch.randn(32, 48)
    for source in (other, other.npu(), other.npu().t().contiguous().t(), ascend.npu_format_cast(other.npu(), NZ)):
        packed.zero_()
        assert packed.abs().sum().item() == 0
        packed.copy_(source)
        assert torch.equal(packed.cpu(), other)
    torch._foreach_copy_([packed], [(other * 2).npu()])
    assert torch.equal(packed.cpu(), other * 2)
    assert ascend.get_npu_format(packed) == NZ


def test_a_copy_of_a_part_from_an_npu_is_converted(ascend: ModuleType) -> None:
    packed, part = ascend.npu_format_cast(torch.zeros(48, 32).npu(), NZ), new(16, 32)
    packed[20:36].copy_(part)
    assert torch.equal(packed[20:36], part)
    assert packed[:20].abs().sum().item() == 0


def test_a_copy_of_a_part_from_the_host_is_laid_out_by_its_own_shape(ascend: ModuleType) -> None:
    packed, part = ascend.npu_format_cast(torch.zeros(48, 32).npu(), NZ), torch.randn(32, 32)
    packed[16:].copy_(part)
    assert not torch.equal(packed[16:].cpu(), part)
    assert torch.equal(bytes_of(packed)[16 * 32 : 48 * 32], in_blocks(part))


def test_a_value_that_is_written_into_a_part_is_where_it_should_be(ascend: ModuleType) -> None:
    packed = ascend.npu_format_cast(torch.zeros(32, 32).npu(), NZ)
    packed[3, 17] = 5
    packed[20:].add_(1)
    torch.add(packed[20:], 1, out=packed[20:])
    expected = torch.zeros(32, 32)
    expected[3, 17], expected[20:] = 5, 2
    assert torch.equal(packed.cpu(), expected)


def test_bytes_that_are_moved_lie_as_they_lay(ascend: ModuleType) -> None:
    w = new(32, 32)
    packed = ascend.npu_format_cast(w, NZ)
    plain = torch.empty(32, 32, device="npu")
    plain.untyped_storage().copy_(packed.untyped_storage())
    assert not torch.equal(plain, w) or ascend.get_npu_format(plain) == NZ
    packed.untyped_storage().copy_(w.untyped_storage())
    assert not torch.equal(packed, w)
    assert torch.equal(bytes_of(packed), w.cpu().flatten())


def test_a_deep_copy_and_a_pickle_keep_the_values(ascend: ModuleType) -> None:
    import pickle

    packed = ascend.npu_format_cast(new(17, 33), NZ)
    assert torch.equal(copy.deepcopy(packed), packed)
    assert torch.equal(copy.deepcopy(torch.nn.Parameter(packed)), packed)
    assert torch.equal(pickle.loads(pickle.dumps(packed)), packed)


def test_memory_that_is_taken_again_has_no_format(ascend: ModuleType) -> None:
    addresses = set()
    for _ in range(50):
        packed = ascend.npu_format_cast(new(64, 64), NZ)
        addresses.add(packed.data_ptr())
        del packed
        plain = torch.empty(64, 64, device="npu")
        assert ascend.get_npu_format(plain) == ND
        addresses.add(plain.data_ptr())
    assert len(addresses) < 100


def test_a_graph_reads_the_values_that_are_there_then(ascend: ModuleType) -> None:
    x, w = new(4, 32), new(48, 32)
    packed, graph = ascend.npu_format_cast(w, NZ), ascend.npu.NPUGraph()
    with ascend.npu.graph(graph):
        y = torch.nn.functional.linear(x, packed) + 1
        z = ascend.npu_rms_norm(x, packed[0])[0]
    other = new(48, 32)
    packed.copy_(other)
    graph.replay()
    assert torch.equal(y, torch.nn.functional.linear(x, other) + 1)
    assert torch.equal(z, ascend.npu_rms_norm(x, other[0])[0])
    packed.untyped_storage().copy_(w.untyped_storage())
    graph.replay()
    assert not torch.equal(y, torch.nn.functional.linear(x, w) + 1)


@pytest.mark.parametrize("what", ["cast", "copy"])
def test_a_capture_refuses_to_cast(ascend: ModuleType, what: str) -> None:
    w = new(32, 32)
    packed = ascend.npu_format_cast(w, NZ)
    with (
        pytest.raises(RuntimeError, match="Cannot run aclop operators during NPU graph capture"),
        ascend.npu.graph(ascend.npu.NPUGraph()),
    ):
        ascend.npu_format_cast(w, NZ) if what == "cast" else packed.copy_(w)


def test_without_leave_a_cast_leaves_the_tensor_as_it_is_and_says_so(ascend: ModuleType) -> None:
    ascend.npu.config.allow_internal_format = False
    layout._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="tensor will be created with base format"):
        assert ascend.get_npu_format(ascend.npu_format_cast(new(32, 32), NZ)) == ND
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ascend.npu_format_cast(new(32, 32), NZ)


def test_a_row_has_no_format_of_its_own(ascend: ModuleType) -> None:
    layout._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="Cannot create tensor with NZ format while dim < 2"):
        assert ascend.get_npu_format(ascend.npu_format_cast(new(32), NZ)) == ND


BROADCAST = """
import json, os, torch, torch_npu, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.config.allow_internal_format = True
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=size)
plain = torch.arange(1024.0).view(32, 32)
same = torch_npu.npu_format_cast(plain.npu() * (1 - rank), 29)
dist.broadcast(same, 0)
mixed = plain.npu() if rank == 0 else torch_npu.npu_format_cast(torch.zeros(32, 32).npu(), 29)
dist.broadcast(mixed, 0)
print(json.dumps([torch.equal(same.cpu(), plain), torch.equal(mixed.cpu(), plain)]))
dist.destroy_process_group()
"""


def test_a_broadcast_moves_bytes(tmp_path: Any) -> None:
    """HcclBroadcast gets an address and a number of elements (ProcessGroupHCCL.cpp)."""
    assert results(start_ranks(BROADCAST, tmp_path)) == [[True, True], [True, False]]
