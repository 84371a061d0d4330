"""Triton's kernels on virtual NPUs are computed by their references, or refused by name.

tests/e2e/test_triton_kernels.py compares the references with the kernels themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from virtual_ascend.testing import pythonpath_and

torch = pytest.importorskip("torch")

from verl_npu_workbench.simulation.triton_references import REFERENCES, launch_references  # noqa: E402  # after torch

pytestmark = pytest.mark.virtual

SLOTS = "vllm.v1.worker.block_table._compute_slot_mapping_kernel"
ASCEND_KERNEL = "vllm_ascend.ops.triton.compute_slot_mapping._compute_slot_mapping_kernel"
TABLE = [[3, 5, 7], [2, 9, 4]]


class TritonPlaceholder:
    """A stand-in for vLLM's placeholder, whose decorators return the decorated function."""

    def __init__(self) -> None:
        self.jit = self._dummy_decorator("jit")
        self.autotune = self._dummy_decorator("autotune")

    def _dummy_decorator(self, name: str) -> Callable[..., Any]:
        def decorator(*args: Any, **options: Any) -> Any:
            return args[0] if args and callable(args[0]) else lambda function: function

        return decorator


@pytest.fixture
def triton() -> Any:
    """Return the triton that vLLM's modules see on virtual NPUs."""
    importing = ModuleType("vllm.triton_utils.importing")
    importing.HAS_TRITON = False  # type: ignore[attr-defined]
    importing.TritonPlaceholder = type("TritonPlaceholder", (TritonPlaceholder,), {})  # type: ignore[attr-defined]
    launch_references(importing)
    return importing.TritonPlaceholder()


def kernel(
    num_tokens, max_num_tokens, query_start_loc_ptr, positions_ptr, block_table_ptr, block_table_stride, block_size,
    slot_mapping_ptr, TOTAL_CP_WORLD_SIZE, TOTAL_CP_RANK, CP_KV_CACHE_INTERLEAVE_SIZE, PAD_ID, BLOCK_SIZE,
) -> None:  # fmt: skip
    """The parameters of vLLM's kernel that gives tokens their slots."""


def named(function: Callable[..., None], name: str = SLOTS) -> Callable[..., None]:
    function.__module__, _, function.__qualname__ = name.rpartition(".")
    return function


def slots(
    launch: Callable[..., None],
    device: str = "npu",
    starts: tuple[int, ...] = (0, 3, 5),
    positions: tuple[int, ...] = (0, 4, 11, 5, 6),
    ranks: int = 1,
    rank: int = 0,
    piece: int = 1,
    room: int = 7,
) -> list[int]:
    out = torch.full((9,), -7, dtype=torch.int32, device=device)
    launch(
        len(positions),
        room,
        torch.tensor(starts, dtype=torch.int32, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(TABLE, dtype=torch.int32, device=device),
        3,
        4,
        out,
        TOTAL_CP_WORLD_SIZE=ranks,
        TOTAL_CP_RANK=rank,
        CP_KV_CACHE_INTERLEAVE_SIZE=piece,
        PAD_ID=-1,
        BLOCK_SIZE=1024,
    )
    found: list[int] = out.tolist()
    return found


def test_a_launched_kernel_gives_each_token_its_slot_and_pads_the_rest(npu: ModuleType, triton: Any) -> None:
    launch = triton.jit(named(kernel))[(3,)]
    # Blocks of four: position 11 of the first request is the last of its third block, which is number 7.
    assert slots(launch) == [3 * 4, 5 * 4, 7 * 4 + 3, 9 * 4 + 1, 9 * 4 + 2, -1, -1, -7, -7]


def ascend_kernel(
    num_tokens, max_num_tokens, query_start_loc_ptr, positions_ptr, block_table_ptr, block_table_stride, block_size,
    slot_mapping_ptr, KV_CACHE_BLOCK_SIZE, BLOCKS_PER_KV_BLOCK, TOTAL_CP_WORLD_SIZE, TOTAL_CP_RANK,
    CP_KV_CACHE_INTERLEAVE_SIZE, PAD_ID, TILE_BLOCK_SIZE, BLOCK_TABLE_WINDOW_SIZE,
) -> None:  # fmt: skip
    """The parameters of vllm-ascend's kernel from 0.26 on."""


@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_ascends_own_kernel_gives_the_same_slots_without_context_parallelism(
    ranks: int, npu: ModuleType, triton: Any
) -> None:
    launched = triton.jit(named(ascend_kernel, ASCEND_KERNEL))[(3,)]

    def launch(*given: Any, BLOCK_SIZE: int, **named: Any) -> None:
        tiles = {"TILE_BLOCK_SIZE": BLOCK_SIZE, "BLOCK_TABLE_WINDOW_SIZE": 512}
        launched(*given, **named, **tiles, KV_CACHE_BLOCK_SIZE=4, BLOCKS_PER_KV_BLOCK=1)

    if ranks > 1:
        with pytest.raises(NotImplementedError, match="_compute_slot_mapping_kernel with context parallelism"):
            slots(launch, ranks=ranks)
        return
    assert slots(launch) == slots(triton.jit(named(kernel))[(3,)])


def test_a_kernel_of_options_is_launched_alike(npu: ModuleType, triton: Any) -> None:
    launch = triton.autotune(configs=[])(triton.jit(do_not_specialize=["num_tokens"])(named(kernel)))[(3,)]
    assert slots(launch)[:2] == [12, 20]


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, [12, -1, 5 * 4 + 1, -1, 2 * 4 + 2]), (1, [-1, 3 * 4, -1, 2 * 4 + 1, -1])]
)
def test_with_context_parallelism_a_rank_has_every_other_token(
    rank: int, expected: list[int], npu: ModuleType, triton: Any
) -> None:
    launch = triton.jit(named(kernel))[(3,)]
    # Position 1 is the first of rank 1; a block of the table holds eight positions of both ranks.
    found = slots(launch, positions=(0, 1, 10, 3, 4), ranks=2, rank=rank)
    assert found[:5] == expected


def test_pieces_of_two_tokens_go_to_the_ranks_in_turn(npu: ModuleType, triton: Any) -> None:
    launch = triton.jit(named(kernel))[(2,)]
    found = slots(launch, starts=(0, 8), positions=tuple(range(8)), ranks=2, rank=1, piece=2, room=8)
    assert found[:8] == [-1, -1, 12, 13, -1, -1, 14, 15]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": (0, 4, 12, 5, 6)}, "position 12 is outside the 3 blocks of 4"),
        ({"starts": (0, 3, 6)}, "ascending entries up to 5; found"),
        ({"starts": (0, 3)}, "query_start_loc must have 3 ascending entries"),
        ({"room": 10}, "9 slots, which is not enough for 10 tokens"),
    ],
)
def test_what_the_kernel_would_read_outside_of_its_tensors_is_an_error(
    changes: dict[str, Any], words: str, npu: ModuleType, triton: Any
) -> None:
    with pytest.raises(RuntimeError, match=words):
        slots(triton.jit(named(kernel))[(3,)], **changes)


def test_tensors_of_the_host_are_refused(triton: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"_compute_slot_mapping_kernel.*runs on NPUs only"):
        slots(triton.jit(named(kernel))[(3,)], device="cpu")


def test_a_kernel_without_a_reference_raises_with_its_name(triton: Any) -> None:
    def other(x_ptr: object) -> None: ...

    with pytest.raises(NotImplementedError, match=r"Triton kernel vllm_ascend\.ops\.triton\.rope\._kernel"):
        triton.jit(named(other, "vllm_ascend.ops.triton.rope._kernel"))[(1,)](None)


def test_a_kernel_whose_parameters_changed_is_not_computed_by_an_old_reference(triton: Any) -> None:
    def changed(num_tokens: int, positions_ptr: object) -> None: ...

    with pytest.raises(
        NotImplementedError,
        match="but the kernel in the installed release has the parameters num_tokens, positions_ptr",
    ):
        triton.jit(named(changed))[(1,)](1, None)


def test_a_kernel_is_not_called(triton: Any) -> None:
    with pytest.raises(RuntimeError, match="launch it with a grid instead of calling it"):
        triton.jit(named(kernel))(1)


@pytest.mark.parametrize("active", [True, False])
def test_a_triton_is_left_alone_only_where_it_has_a_device(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in Ray's workers, vLLM assumes that Triton works, whether it has a device or not.
    backends = ModuleType("triton.backends")
    driver = SimpleNamespace(is_active=lambda: active)
    backends.backends = {"nvidia": SimpleNamespace(driver=driver)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.backends", backends)
    importing = ModuleType("vllm.triton_utils.importing")
    importing.HAS_TRITON = True  # type: ignore[attr-defined]
    importing.TritonPlaceholder = type("TritonPlaceholder", (TritonPlaceholder,), {})  # type: ignore[attr-defined]
    importing.TritonLanguagePlaceholder = type("Language", (), {"exp": None})  # type: ignore[attr-defined]
    launch_references(importing)
    assert importing.HAS_TRITON is active
    assert (importing.TritonPlaceholder().jit(kernel) is kernel) is active


def test_a_release_whose_placeholder_cannot_stand_in_keeps_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_npu_workbench.simulation.triton_references._has_device", lambda: False)
    importing: Any = ModuleType("importing")
    importing.HAS_TRITON = True
    importing.TritonPlaceholder = type("TritonPlaceholder", (TritonPlaceholder,), {})
    importing.TritonLanguagePlaceholder = type("Language", (), {})
    launch_references(importing)
    assert importing.HAS_TRITON is True


def test_a_vllm_without_a_placeholder_is_left_alone() -> None:
    importing = ModuleType("vllm.triton_utils.importing")
    importing.HAS_TRITON = False  # type: ignore[attr-defined]
    launch_references(importing)


def test_vllms_placeholder_launches_references_in_each_process_with_virtual_npus(python: Any, tmp_path: Any) -> None:
    folder = tmp_path / "vllm" / "triton_utils"
    folder.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "importing.py").write_text(
        "HAS_TRITON = False\n"
        "class TritonPlaceholder:\n"
        "    def __init__(self): self.jit = self._dummy_decorator('jit')\n"
        "    def _dummy_decorator(self, name): return lambda function: function\n"
    )
    done = python(
        "import torch\nfrom vllm.triton_utils.importing import TritonPlaceholder\n"
        "def kernel(x): ...\nTritonPlaceholder().jit(kernel)[(1,)](1)",
        PYTHONPATH=pythonpath_and(tmp_path),
    )
    assert "NotImplementedError: virtual-ascend does not implement the Triton kernel __main__.kernel" in done.stderr


def test_references_are_named_by_the_module_that_has_the_kernel() -> None:
    assert all(name.startswith(("vllm.", "vllm_ascend.")) for name in REFERENCES)
