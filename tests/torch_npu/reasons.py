"""Why tests of torch_npu do not pass on the virtual Ascend: rules, the first that fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Kind", "Reason", "reason"]


class Kind(Enum):
    """What a failure is about."""

    NAMED = "not implemented"  # raises with its name
    OTHER = "private, or newer than torch_npu 2.10.0"  # no public name of the wheels, and so not there
    TORCH = "another torch"  # the test is written for other versions of torch
    CHIP = "a real NPU"  # its chips, CANN, files and tools
    DETAIL = "a detail"  # runs otherwise than in torch_npu, and is not taken for wrong
    TESTS = "the tests themselves"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why."""

    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    """`test` is searched in file::test, `said` in what the test said; groups of `said` may stand in `why`."""

    kind: Kind
    why: str
    said: str = ""
    test: str = ""


_ABSENT = r"(\S+) is not implemented by the virtual Ascend"
_DTENSOR = r"new_empty_strided|split_tensor|view_groups|view_ops_p4|embedding_rowwise|seq_parallel_False"
_FSDP = r"communication_count|backward_prefetch|forward_prefetch"

RULES = (
    # What raises with its name.
    Rule(Kind.CHIP, "formats of its memory: there is one here", test="internal_format|test_npu_format_cast.py"),
    Rule(Kind.CHIP, "formats of its memory: there is one here", r"get_npu_format|empty_with_format|get_storage_size"),
    Rule(Kind.CHIP, "formats of its memory: there is one here", r"npu_format_cast|npu_change_data_ptr"),
    Rule(Kind.NAMED, "operators", r"^(?:.*: )?torch_npu\.[a-z_]\w+ is not implemented by the virtual"),
    Rule(Kind.NAMED, "operators", r"'_OpNamespace' 'npu' object has no attribute|operator npu::\w+ does not exist"),
    Rule(Kind.NAMED, r"`\1`", rf"NotImplementedError: {_ABSENT}"),
    Rule(Kind.OTHER, r"module `\1`", r"No module named '(torch_npu[\w.]*)'"),
    Rule(Kind.OTHER, r"`\1.\2`", r"module '(torch_npu[\w.]*)' has no attribute '(\w+)'"),
    Rule(Kind.OTHER, r"`\2.\1`", r"cannot import name '(\w+)' from '(torch_npu[\w.]*)'"),
    Rule(
        Kind.OTHER,
        "`reduce_scatter` of lists that do not fit",
        test="input_list_not_equal_world|input_numel_not_equal",
    ),
    # Another torch.
    Rule(
        Kind.TORCH,
        "names that torch 2.13 does not have",
        r"No module named 'torch\.|cannot import name '\w+' from 'torch\.",
    ),
    Rule(
        Kind.TORCH,
        "names that torch 2.13 does not have",
        r"'DeviceMesh' object has no attribute|'dict' object is not call",
    ),
    Rule(
        Kind.TORCH,
        "signatures that torch 2.13 does not have",
        r"positional argument|unexpected keyword argument|_dtensor__new__",
    ),
    Rule(Kind.TORCH, "signatures that torch 2.13 does not have", r"incompatible constructor arguments"),
    Rule(
        Kind.TORCH,
        "what torch 2.13 says in its errors",
        r'AssertionError: ".*" does not match',
        r"^distributed/_?tensor/",
    ),
    Rule(
        Kind.TORCH,
        "what torch 2.13 does, on the CPU too",
        test=r"_tensor/test_(dtensor|view_ops|embedding_ops|redistribute)\.py",
    ),
    Rule(
        Kind.TORCH,
        "what torch 2.13 does, on every device",
        test=rf"/_tensor/.*({_DTENSOR}|partial_to_replicate_forward)",
    ),
    Rule(Kind.TORCH, "FSDP2's order of communications in torch 2.13", test=rf"fsdp2/test_fully_shard_comm.*({_FSDP})"),
    Rule(Kind.TESTS, "calls an operator without an argument that its schema asks for", r"missing value for argument"),
    Rule(Kind.TESTS, "calls what is no method", r"'builtin_function_or_method' object has no attribute"),
    Rule(
        Kind.TESTS, "a package that is not installed", r"No module named '(ml_dtypes|torchvision|onnx\w*|expecttest)'"
    ),
    Rule(
        Kind.DETAIL,
        "a gradient that depends on nothing has a node in the graph there",
        test=r"dtype_cast_double_backward",
    ),
)


def reason(file: str, test: str, said: str) -> Reason | None:
    """The reason of one failure; None where no rule fits."""
    for rule in RULES:
        if re.search(rule.test, f"{file}::{test}") and (match := re.search(rule.said, said)):
            return Reason(rule.kind, match.expand(rule.why))
    return None
