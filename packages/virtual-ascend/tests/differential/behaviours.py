"""Questions to both torch_npus beside operators: devices, streams, events, memory, options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_TEXTS = {
    # A text that begins with "=" has its answer compared.
    "=set_device(9)": "torch.npu.set_device(9)",
    "=set_device('npu:1')": "(torch.npu.set_device('npu:1'), torch.npu.current_device(), torch.npu.set_device(0))",
    "=set_device('npu')": "torch.npu.set_device('npu')",
    "=set_device('cpu')": "torch.npu.set_device('cpu')",
    "=set_device(-1)": "torch.npu.set_device(-1)",
    "get_device_name()": "torch.npu.get_device_name()",
    "get_device_name('npu:0')": "torch.npu.get_device_name('npu:0')",
    "get_device_name(5)": "torch.npu.get_device_name(5)",
    "get_device_name(device=0)": "torch.npu.get_device_name(device=0)",
    "get_device_name(device_name=0)": "torch.npu.get_device_name(device_name=0)",
    "get_device_properties(device=0)": "torch.npu.get_device_properties(device=0)",
    "get_device_properties(device_name=0)": "torch.npu.get_device_properties(device_name=0)",
    "get_device_properties(7)": "torch.npu.get_device_properties(7)",
    "=get_device_capability()": "torch.npu.get_device_capability()",
    "can_device_access_peer(device=, peer=)": "torch.npu.can_device_access_peer(device=0, peer=1)",
    "=can_device_access_peer(device_id=, peer_device_id=)":
        "torch.npu.can_device_access_peer(device_id=0, peer_device_id=1)",
    "=can_device_access_peer(0, 1)": "torch.npu.can_device_access_peer(0, 1)",
    "=can_device_access_peer(0, 9)": "torch.npu.can_device_access_peer(0, 9)",
    "exchange_device(1)": "(torch.npu.exchange_device(1), torch.npu.set_device(0))",
    "_exchange_device(0)": "torch.npu._exchange_device(0)",
    "maybe_exchange_device(0)": "torch.npu.maybe_exchange_device(0)",
    "=is_bf16_supported()": "torch.npu.is_bf16_supported()",
    "read config.allow_internal_format": "torch.npu.config.allow_internal_format",
    "=write config.allow_internal_format": "setattr(torch.npu.config, 'allow_internal_format', False)",
    "=config.allow_internal_format = 'no'": "setattr(torch.npu.config, 'allow_internal_format', 'no')",
    "=matmul.allow_hf32": "torch.npu.matmul.allow_hf32",
    "=conv.allow_hf32": "torch.npu.conv.allow_hf32",
    "=matmul.allow_hf32 = True": "(setattr(torch.npu.matmul, 'allow_hf32', True), torch.npu.matmul.allow_hf32)",
    "matmul.no_such": "torch.npu.matmul.no_such",
    "matmul.no_such = True": "setattr(torch.npu.matmul, 'no_such', True)",
    "=set_compile_mode(jit_compile=False)": "torch.npu.set_compile_mode(jit_compile=False)",
    "=set_option of an implementation": "torch.npu.set_option({'ACL_OP_SELECT_IMPL_MODE': 'high_performance'})",
    "set_option of an unknown key": "torch.npu.set_option({'NO_SUCH': '1'})",
    "set_option of an unknown value": "torch.npu.set_option({'ACL_PRECISION_MODE': 'NO_SUCH'})",
    "set_option of no dictionary": "torch.npu.set_option(1)",
    "Event()": "torch.npu.Event() is not None",
    "Event().event_id": "torch.npu.Event().event_id",
    "=Event(enable_timing, blocking, interprocess)":
        "torch.npu.Event(enable_timing=True, blocking=True, interprocess=False) is not None",
    "Event(external=True)": "torch.npu.Event(external=True) is not None",
    "Event(no_such=True)": "torch.npu.Event(no_such=True) is not None",
    "elapsed_time without timing": "timed(torch.npu.Event())",
    "elapsed_time before recording":
        "torch.npu.Event(enable_timing=True).elapsed_time(torch.npu.Event(enable_timing=True))",
    "elapsed_time": "type(timed(torch.npu.Event(enable_timing=True)))",
    "Stream(priority=-1)": "torch.npu.Stream(priority=-1) is not None",
    "=Stream(device='npu:1')": "torch.npu.Stream(device='npu:1').device",
    "Stream(device='cpu')": "torch.npu.Stream(device='cpu').device",
    "Stream(no_such=1)": "torch.npu.Stream(no_such=1)",
    "=torch.Stream": "torch.Stream(device='npu').device",
    "stream(None)": "torch.npu.stream(None).__enter__()",
    "record_stream": "x.record_stream(torch.npu.current_stream())",
    "record_stream of none": "x.record_stream(None)",
    "=wait_stream": "torch.npu.current_stream().wait_stream(torch.npu.Stream())",
    "mstx.mark": "torch_npu.npu.mstx.mark('b')",
    "mstx.range_start with a domain": "torch_npu.npu.mstx.range_start('a', domain='d') is not None",
    "mstx.mark with a domain": "torch_npu.npu.mstx.mark('a', domain='d')",
    "mstx_range with a domain": "torch_npu.npu.mstx.mstx_range('a', domain='d') is not None",
    "mstx.mark of a number": "torch_npu.npu.mstx.mark(1)",
    "profiler.schedule(skip_first_wait=1)":
        "torch_npu.profiler.schedule(wait=1, warmup=1, active=1, skip_first_wait=1) is not None",
    "profiler.schedule": "torch_npu.profiler.schedule(wait=1, warmup=1, active=1, repeat=1, skip_first=1) is not None",
    "=Format": "torch_npu.Format.FRACTAL_NZ",
    "=get_npu_format": "torch_npu.get_npu_format(x)",
    "=tensor on npu:7": "torch.ones(1, device='npu:7')",
    "=float64": "torch.ones(2, dtype=torch.float64, device='npu').dtype",
    "=x.double()": "x.double().dtype",
    "=complex64": "torch.ones(2, dtype=torch.complex64).npu().dtype",
    "=numpy()": "x.numpy()",
    "=host and NPU": "x + torch.ones(3)",
    "two NPUs": "x + torch.ones(3, device='npu:1')",
    "matmul of host and NPU": "torch.ones(3, 3).npu() @ torch.ones(3, 3)",
    "is_cuda": "x.is_cuda",
    "=pin_memory": "torch.ones(3).pin_memory().is_pinned()",
    "=is_npu": "(x.is_npu, torch.ones(1).is_npu)",
    "cuda()": "torch.ones(1).cuda()",
    "=to(1)": "torch.ones(1).to(1).device",
    "=npu(1)": "torch.ones(1).npu(1).device",
    "npu(9)": "torch.ones(1).npu(9).device",
    "=set_per_process_memory_fraction(2.0)": "torch.npu.set_per_process_memory_fraction(2.0)",
    "set_per_process_memory_fraction('a')": "torch.npu.set_per_process_memory_fraction('a')",
    "=memory_reserved() > 0": "torch.npu.memory_reserved() > 0",
    "memory_snapshot": "type(torch.npu.memory_snapshot()).__name__",
    "_record_memory_history": "torch.npu.memory._record_memory_history(enabled=None)",
    "caching_allocator_alloc(-1)": "torch.npu.caching_allocator_alloc(-1)",
    "mem_get_info(9)": "torch.npu.mem_get_info(9)",
    "memory_allocated(9)": "torch.npu.memory_allocated(9)",
    "=rng state": "(torch.npu.get_rng_state().dtype, torch.npu.get_rng_state().device)",
    "manual_seed('a')": "torch.npu.manual_seed('a')",
    "=initial_seed": "(torch.npu.manual_seed(7), torch.npu.initial_seed())",
    "set_rng_state of another size": "torch.npu.set_rng_state(torch.zeros(3, dtype=torch.uint8))",
    "=autocast dtype": "torch.get_autocast_dtype('npu')",
    "autocast to int32": "torch.npu.amp.autocast(dtype=torch.int32).__enter__()",
    "synchronize(9)": "torch.npu.synchronize(9)",
    "get_npu_overflow_flag": "torch.npu.get_npu_overflow_flag()",
    "ProcessGroupHCCL.Options":
        "torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options(is_high_priority_stream=True) is not None",
    "saved on npu:1": "saved('npu:1')",
    "=saved on npu:0": "saved('npu:0')",
    "device_of(None)": "torch.npu.device_of(None)",
    "device('cpu')": "torch.npu.device('cpu')",
}  # fmt: skip


def _ask(text: str) -> Any:
    import torch
    import torch_npu

    def timed(event: Any) -> float:
        event.record()
        torch.npu.synchronize()
        return event.elapsed_time(event)

    def saved(device: str) -> Any:
        import io

        out = io.BytesIO()
        torch.save(torch.ones(2, device=device), out)
        out.seek(0)
        return torch.load(out, weights_only=True).device

    known = {"torch": torch, "torch_npu": torch_npu, "timed": timed, "saved": saved, "x": torch.ones(3, device="npu")}
    return eval(text, known)


BEHAVIOURS: dict[str, Callable[[], Any]] = {
    label.removeprefix("="): functools.partial(_ask, text) for label, text in _TEXTS.items()
}
"""The behaviors by name; for each, it is compared whether both return or raise."""
SAME = frozenset(label[1:] for label in _TEXTS if label.startswith("="))
"""The behaviors whose answer is compared as well."""
