"""Faults of vllm-ascend with the memory beneath graphs that users reported, with functions and files of its history.

They concern memory that sleep takes away or that a capture gives back, and values that a replay gets anew; see
`test_public_faults.py`.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from virtual_ascend import camem

from .released import Revision
from .test_public_faults import Unquantized, given

SILENT = SimpleNamespace(info=lambda *words: None, warning=lambda *words: None)
PLATFORM = SimpleNamespace(
    set_device=lambda device: None, mem_get_info=lambda: (0, 1), is_pin_memory_available=lambda: False
)
SLEEPING: dict[str, Any] = {
    "Base": Unquantized,
    "NPUPlatform": PLATFORM,
    "GiB_bytes": 1 << 30,
    "logger": SILENT,
    "sleep_mode_enabled": lambda: True,
    "is_enable_nz": lambda: False,
}


@contextmanager
def sleeping(revision: Revision) -> Iterator[Any]:
    """Yield the revision's allocator, over the virtual NPU's memory."""
    camem.stand_in()
    others: dict[str, dict[str, object]] = {
        "vllm": {},
        "vllm.logger": {"logger": SILENT},
        "vllm.utils": {"is_pin_memory_available": lambda: False},
        "vllm_ascend": {"__path__": []},
        "vllm_ascend.platform": {"NPUPlatform": PLATFORM},
    }
    found = revision.module("device_allocator/camem.py", others).CaMemAllocator
    allocator = found.get_instance()
    yield allocator
    # The process has one callback: nobody may ask the next allocator for this one's memory.
    allocator.allocator_and_pools.clear()
    gc.collect()
    assert not allocator.pointer_to_data


def captured(ascend: ModuleType, compute: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
    graph = ascend.npu.NPUGraph()
    with torch.no_grad(), ascend.npu.graph(graph):
        out = compute()
    return graph, out


@pytest.mark.parametrize(
    ("revision", "right"),
    [("v0.9.1", False), ("01592515b8^", False), ("01592515b8", True), ("v0.11.0", True)],
    ids=str,
)
def test_buffers_of_a_model_come_back_after_level_2(
    revision: str, right: bool, history: Path, ascend: ModuleType
) -> None:
    """#1376: the trainer hands over parameters, and nobody the rest."""
    released = Revision(history, revision)
    with sleeping(released) as allocator:
        model, x = torch.nn.Module(), given(7, 3, 4)
        with allocator.use_memory_pool("weights"):
            model.weight = torch.nn.Parameter(given(1, 4, 4), requires_grad=False)
            model.register_buffer("cosines", given(2, 4))
        names = {**SLEEPING, "CaMemAllocator": SimpleNamespace(get_instance=lambda: allocator)}
        worker = released("worker/worker_v1.py", "NPUWorker", ("sleep", "wake_up"), names)()
        vars(worker).update(model_runner=SimpleNamespace(model=model), device="npu", _sleep_saved_buffers={})

        def compute() -> torch.Tensor:
            return x @ worker.model_runner.model.weight * worker.model_runner.model.cosines

        graph, out = captured(ascend, compute)
        graph.replay()
        before = out.clone()
        worker.sleep(2)
        worker.wake_up(["weights"])
        model.weight.data.copy_(given(1, 4, 4))
        graph.replay()
        assert torch.equal(out, before) is right
        assert bool(out.isnan().all()) is not right
        worker.model_runner = None
        del model, graph, out


@pytest.mark.parametrize(
    ("revision", "right"),
    [("v0.22.1rc1", False), ("0d1d5bf01c^", False), ("0d1d5bf01c", True), ("v0.23.0", True)],
    ids=str,
)
def test_a_matrix_beside_the_cache_comes_back(revision: str, right: bool, history: Path, ascend: ModuleType) -> None:
    """#10684: DeepSeek-V4's Hadamard matrix is made together with the cache, and sleep takes it with the cache."""
    released = Revision(history, revision)
    with sleeping(released) as allocator:
        kind = SimpleNamespace(get_instance=lambda: allocator, sleep_persistent_tag="sleep_persistent")
        builder = SimpleNamespace(hadamard=None)
        hf_config = SimpleNamespace(model_type="deepseek_v4", index_head_dim=16)
        model_config = SimpleNamespace(enable_sleep_mode=True)
        this = SimpleNamespace(device="npu", vllm_config=SimpleNamespace(model_config=model_config))
        names = {"AscendDSAMetadataBuilder": builder, "hf_config": hf_config, "math": math}
        names |= {"self": this, "CaMemAllocator": kind}
        with pytest.MonkeyPatch.context() as patch, allocator.use_memory_pool("kv_cache"):
            camem_module = ModuleType("vllm_ascend.device_allocator.camem")
            vars(camem_module).update(CaMemAllocator=kind)
            for name in ("vllm_ascend", "vllm_ascend.device_allocator"):
                patch.setitem(sys.modules, name, ModuleType(name))
            patch.setitem(sys.modules, camem_module.__name__, camem_module)
            released.statement("attention/dsa_v1.py", "AscendDSAMetadataBuilder.__init__", "hadamard", names)
        x = given(7, 3, 16).bfloat16()
        graph, out = captured(ascend, lambda: x @ builder.hadamard)
        graph.replay()
        before = out.clone()
        allocator.sleep(("weights",))
        allocator.wake_up()
        graph.replay()
        assert torch.equal(out, before) is right
        assert bool(out.isnan().all()) is not right
        del builder.hadamard, graph, out


@pytest.mark.parametrize(
    ("revision", "right"),
    [("v0.13.0rc1", False), ("03679cf1d3^", False), ("03679cf1d3", True), ("v0.13.0", True)],
    ids=str,
)
def test_a_workspace_is_the_layers_own_or_somebody_elses_too(
    revision: str, right: bool, history: Path, ascend: ModuleType
) -> None:
    """#5464: the first layer's workspace becomes the second's, though only an address of it is kept."""
    params = SimpleNamespace(workspaces={4: None})
    names = {"_graph_params": params, "weak_ref_tensors": ascend._C._weak_ref_tensor}
    keep = Revision(history, revision).function("compilation/acl_graph.py", "update_graph_params_workspaces", names)
    x, inner = given(7, 64, 64), []

    def layer(x: torch.Tensor) -> torch.Tensor:
        if params.workspaces[4] is None:
            keep(4, torch.empty(64, 64, device="npu"))
        params.workspaces[4].fill_(7)  # attention writes there
        return x + 1

    def compute() -> torch.Tensor:
        first = layer(x)
        inner.append(first.data_ptr() == params.workspaces[4].data_ptr())
        return layer(first) + first

    graph, out = captured(ascend, compute)
    graph.replay()
    assert inner == [not right]
    assert torch.equal(out, x + 1 + 1 + (x + 1)) is right


@pytest.mark.parametrize(
    ("revision", "right"),
    [("v0.11.0rc1", False), ("277670730c^", False), ("277670730c", True), ("v0.11.0", True)],
    ids=str,
)
def test_lengths_are_told_a_graph_of_speculation_or_not(
    revision: str, right: bool, history: Path, ascend: ModuleType
) -> None:
    """#4282: an update that is ended was never begun."""
    query, cache = given(1, 2, 2, 16).half(), given(2, 4, 8, 1, 16).half()
    table, out = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32).npu(), given(3, 2, 2, 16).half()

    def attend(*_: object, actual_seq_lengths_kv: list[int], out: list[torch.Tensor], **__: object) -> None:
        """Attend with lengths from the host, in place of MLA's attention."""
        lengths = torch.tensor(actual_seq_lengths_kv, dtype=torch.int32)
        ascend._npu_paged_attention(query, cache, cache, 1, 2, 0.25, table, lengths, out[0])

    graph, event, stream = ascend.npu.NPUGraph(), ascend.npu.ExternalEvent(), ascend.npu.Stream()
    with ascend.npu.graph(graph):
        here = ascend.npu.current_stream()
        event.wait(here)
        event.reset(here)
        ascend.npu.graph_task_group_begin(here)
        attend(actual_seq_lengths_kv=[1, 1], out=[out])
        handle = ascend.npu.graph_task_group_end(here)
    held = (None,) * 14 + (out, None)
    params = SimpleNamespace(attn_params={4: [held]}, handles={4: [handle]}, events={4: [event]}, workspaces={})
    names = {
        "get_graph_params": lambda: params,
        "torch_npu": SimpleNamespace(npu_fused_infer_attention_score=SimpleNamespace(out=attend)),
    }
    update = Revision(history, revision).function("compilation/acl_graph.py", "update_mla_attn_params", names)
    decode = SimpleNamespace(seq_lens_list=[5, 9], actual_seq_lengths_q=[2, 4])
    context = SimpleNamespace(attn_metadata={"layer": SimpleNamespace(decode=decode)})
    speculation = SimpleNamespace(method="deepseek_mtp", num_speculative_tokens=1)
    if not right:
        with pytest.raises(RuntimeError, match="107033"):
            update(stream, context, 4, speculation)
        return
    update(stream, context, 4, speculation)
    graph.replay()
    expected = torch.zeros_like(out)
    attend(actual_seq_lengths_kv=[5, 9], out=[expected])
    assert torch.equal(out, expected)


@pytest.mark.parametrize("revision", ["v0.11.0", "v0.18.0"])
def test_a_row_that_fills_a_batch_spoils_the_others(revision: str, history: Path, ascend: ModuleType) -> None:
    """#2877 and #10579: an expert of another rank counts as the second row, times zero."""
    path = "ops/moe/token_dispatcher.py" if revision == "v0.11.0" else "ops/fused_moe/token_dispatcher.py"
    names = {"Base": Unquantized, "torch_npu": ascend}
    combine = Revision(history, revision)(path, "TokenDispatcherWithAllGather", ("token_combine",), names)()
    rows = given(1, 4, 8)
    # Two tokens with two experts each, of which this rank has one: the other's place is -1.
    known = {"expanded_row_idx": torch.tensor([0, -1, 2, -1], dtype=torch.int32).npu()}
    known |= {"topk_weights": torch.tensor([[0.5, 0.0], [0.25, 0.0]]).npu(), "restore_shape": (2, 8)}
    vars(combine).update(known, original_shape=(2, 8))
    said = (SimpleNamespace(**known),) if revision != "v0.11.0" else ()
    expected = torch.stack([rows[0] * 0.5, rows[2] * 0.25])
    assert torch.equal(combine.token_combine(rows, *said), expected)
    rows[1] = torch.nan
    vars(combine).update(known)
    assert combine.token_combine(rows, *said).isnan().all()
