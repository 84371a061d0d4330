"""The reasons why tests of torch_npu do not pass on the virtual Ascend: rules, of which the first that fits counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The subject of a failure."""

    NAMED = "not implemented"  # raises with its name
    OTHER = "private, or newer than torch_npu 2.10.0"  # no public name of the wheels, and so not there
    TORCH = "another torch"  # the test is written for other versions of torch
    CHIP = "a real NPU"  # its chips, CANN, files and tools
    DETAIL = "a detail"  # differs from torch_npu, but is not considered wrong
    TESTS = "the tests themselves"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a failure."""

    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `test` is searched in file::test, `said` in the test's message; `why` may use groups of `said`."""

    kind: Kind
    why: str
    said: str = ""
    test: str = ""


_ABSENT = r"(\S+) is not implemented by the virtual Ascend"
_DTENSOR = (
    r"new_empty_strided|split_tensor|view_groups|view_ops_p4|embedding_rowwise|seq_parallel_False|replicate_forward"
)
_FSDP = r"communication_count|backward_prefetch|forward_prefetch"

_RULES = "rules of its own operators for DTensor: they are compositions"
_FORMATS = "formats of its memory: there is one here"
_NAMES = "names that torch 2.13 does not have"
_SIGNATURES = "signatures that torch 2.13 does not have"
_SAME = "what torch 2.13 does, on every device"
_WORDS = "words and numbers of errors"
_FILES = "its libraries, headers and documentation"
_PROPERTIES = "properties of the chip"

RULES = (
    # Names that raise an error with their name.
    Rule(Kind.CHIP, _FORMATS, test=r"internal_format|test_npu_format_cast.py|with_format|2p_size_dist$"),
    Rule(
        Kind.CHIP,
        _FORMATS,
        r"FRACTAL_|get_npu_format|empty_with_format|get_storage_size|npu_format_cast|npu_change_data_ptr",
    ),
    Rule(Kind.NAMED, "operators", r"^(?:.*: )?torch_npu\.[a-z_]\w+ is not implemented by the virtual"),
    Rule(Kind.NAMED, "operators", r"'_OpNamespace' 'npu' object has no attribute|operator npu::\w+ does not exist"),
    Rule(Kind.NAMED, r"`\1`", rf"NotImplementedError: {_ABSENT}"),
    Rule(Kind.NAMED, r"`torch_npu.npu.set_sync_debug_mode`", r"set_sync_debug_mode is not implemented"),
    Rule(Kind.NAMED, "sparse tensors", r"'Sparsenpu'"),
    Rule(Kind.NAMED, "graphs and memory pools", test=r"test_mempool_destructor"),
    Rule(Kind.NAMED, _RULES, r"got DTensor|be evenly sharded,"),
    Rule(Kind.NAMED, _RULES, r"RuntimeError: (aten\.masked_fill|view size is not)", r"tensor/test_attention_ops"),
    Rule(Kind.NAMED, r"`\1: \2`", r"(npu_\w+): virtual-ascend does not implement (\w+)"),
    Rule(
        Kind.DETAIL,
        "`import torch_npu` before `import torch`, which makes it importable",
        r"No module named 'torch_npu'$",
    ),
    Rule(Kind.OTHER, r"module `\1`", r"No module named '(torch_npu[\w.]*)'"),
    Rule(Kind.OTHER, r"`\1.\2`", r"module '(torch_npu[\w.]*)' has no attribute '(\w+)'"),
    Rule(Kind.OTHER, r"`\2.\1`", r"cannot import name '(\w+)' from '(torch_npu[\w.]*)'"),
    Rule(Kind.OTHER, "`reduce_scatter` of lists that do not fit", test=r"input_list_not_equal|input_numel_not_equal"),
    Rule(Kind.OTHER, "an event's `recorded_time`", r"'Event' object has no attribute 'recorded_time'"),
    # Another torch.
    Rule(Kind.TORCH, _NAMES, r"No module named 'torch\.|cannot import name '\w+' from 'torch\."),
    Rule(Kind.TORCH, _NAMES, r"'DeviceMesh' object has no attribute|'dict' object is not call"),
    Rule(Kind.TORCH, _SIGNATURES, r"positional argument|unexpected keyword argument|_dtensor__new__"),
    Rule(Kind.TORCH, _SIGNATURES, r"incompatible constructor arguments"),
    Rule(
        Kind.TORCH,
        "what torch 2.13 says in its errors",
        r'AssertionError: ".*" does not match',
        r"^distributed/_?tensor/",
    ),
    Rule(Kind.TORCH, _SAME, test=rf"/_tensor/.*({_DTENSOR})"),
    Rule(Kind.TORCH, _SAME, r"[Cc]annot (un)?flatten unevenly sharded"),
    Rule(Kind.TORCH, "FSDP2's order of communications in torch 2.13", test=rf"fsdp2/test_fully_shard_comm.*({_FSDP})"),
    # The chip.
    Rule(
        Kind.CHIP, "which operators fall back to the CPU, and what is said of it", test=r"fallback|not_supported_ops"
    ),
    Rule(Kind.CHIP, _FILES, r"build_stub\.sh|site/torch_npu/include"),
    Rule(Kind.CHIP, _FILES, test=r"test_(ops_doc|compatibility|public_bindings)\.py"),
    Rule(Kind.CHIP, "settings of CANN in files and variables", test=r"AclInitConfigPath|AclOpInitMode|aclopCompile"),
    Rule(Kind.CHIP, "numbers of its kernels in float16", test=r"logits_float16|logits_function_float16"),
    Rule(Kind.CHIP, _PROPERTIES, test=r"device_capability|unsupported_device_properties"),
    Rule(Kind.CHIP, "its faults", test=r"test_uce\.py|test_recovery\.py"),
    # The rest.
    Rule(Kind.TESTS, "calls an operator without an argument that its schema asks for", r"missing value for argument"),
    Rule(Kind.TESTS, "calls what is no method", r"'builtin_function_or_method' object has no attribute"),
    Rule(
        Kind.TESTS, "a package that is not installed", r"No module named '(ml_dtypes|torchvision|onnx\w*|expecttest)'"
    ),
    Rule(Kind.TESTS, "classes that unittest cannot make without a test", r"has no attribute 'runTest'"),
    Rule(Kind.TESTS, "no test is in it", r"no test ran"),
    Rule(Kind.TESTS, "more memory than is given to the run", r"NPU out of memory"),
    Rule(Kind.TESTS, "more memory than the host has", r"ended by signal 9", r"test_ipc_event"),
    Rule(
        Kind.DETAIL,
        "settings of the caching allocator: nothing is cached",
        test=r"segment|divisions|caching_pinned|erase_stream",
    ),
    Rule(Kind.DETAIL, "settings of the caching allocator: nothing is cached", test=r"test_allocator_envs"),
    Rule(Kind.DETAIL, _WORDS, test=r"test_errcode|test_fault_mode|alltoall_single_2p_expect"),
    Rule(Kind.DETAIL, "`batch_isend_irecv` to oneself, which torch refuses", test=r"test_dist_batch_isend_irecv$"),
    Rule(Kind.DETAIL, "names of nodes of its autograd", test=r"dtype_cast_complex"),
    Rule(Kind.DETAIL, "an old file's `map_location`", test=r"maplocation_map_kind_none"),
    Rule(Kind.DETAIL, "a gradient that depends on nothing has a node there", test=r"dtype_cast_double_backward"),
)


# Rules for tests that fail under the wheel and not under our own torch_npu.
WHEEL_RULES = (
    Rule(Kind.NAMED, "graphs and memory pools", r"Failed to find function aclmdlRI"),
    Rule(Kind.CHIP, _FORMATS, test=r"test_serialization_format|2p_size_dist$"),
    Rule(Kind.CHIP, "its source, which a test reads", r"\.cpp'$"),
    Rule(Kind.DETAIL, "`TASK_QUEUE_ENABLE`, which is 0 here", r"subprocess failed", r"per_stream_queue_restriction$"),
    Rule(Kind.DETAIL, "division in place of whole numbers, which the CPU refuses", test=r"all_reduce_uint8_avg$"),
)


def reason(file: str, test: str, said: str, wheel: bool = False) -> Reason | None:
    """Return the reason of one failure; None where no rule fits."""
    for rule in (*WHEEL_RULES, *RULES) if wheel else RULES:
        if re.search(rule.test, f"{file}::{test}") and (match := re.search(rule.said, said)):
            return Reason(rule.kind, match.expand(rule.why))
    return None
