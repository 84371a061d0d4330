"""The overrides of one worker, and whether MindSpeed will do with them what their author meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import VerlNpuError
from .contract import Argument, Contract
from .rules import RULES, Problem

__all__ = ["SECTION_KEYS", "OverrideError", "Request", "check", "effective", "problems"]

# What of a worker's `megatron` section the rules look at.
SECTION_KEYS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_mbridge",
)
_OVERRIDE = "VERL_NPU_DISABLE=megatron"
_PLAIN = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list, tuple)}
_WORDS = {"Optional", "Union", "List", "list", "Literal", "None", "bool", "int", "float", "str", "typing"}


class OverrideError(VerlNpuError):
    """MindSpeed would not do what these overrides say. Nothing has been changed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one worker asks of MindSpeed: its own overrides, and the `megatron` section that they stand in."""

    worker: str
    overrides: Mapping[str, Any]
    section: Mapping[str, Any]


def effective(request: Request) -> dict[str, Any]:
    """The overrides with what verl's and MindSpeed's documents demand beside them.

    Flash attention is on unless the batch-invariant one replaces it; the size of context parallelism is the section's;
    what mc2 and the swapped optimiser look for among MindSpeed's own arguments is there.
    """
    asked = dict(request.overrides)
    section = {key: value for key, value in request.section.items() if value is not None}
    asked.setdefault("use_flash_attn", not asked.get("use_flash_attn_npu_batch_invariant"))
    if section.get("context_parallel_size", 1) > 1:
        asked.setdefault("context_parallel_size", section["context_parallel_size"])
    wanted: tuple[str, ...] = ()
    if asked.get("use_ascend_mc2"):
        wanted += ("sequence_parallel", "tensor_model_parallel_size")
    if asked.get("swap_optimizer"):
        wanted += ("use_distributed_optimizer",)
    for key in wanted:
        if key in section:
            asked.setdefault(key, section[key])
    return asked


def check(request: Request, contract: Contract) -> dict[str, Any]:
    """Give `effective(request)`. Raises OverrideError, naming everything that is wrong, before anything is changed."""
    found = list(problems(request, contract))
    if not found:
        return effective(request)
    first, *others = found
    more = "".join(f"; and {p.subject}: expected {p.expected}, found {p.found}; {p.fix}" for p in others)
    raise OverrideError(
        subject=f"{request.worker}: override_transformer_config.{first.subject}",
        expected=first.expected,
        found=first.found,
        fix=first.fix + more,
        override=_OVERRIDE,
    )


def problems(request: Request, contract: Contract) -> Iterator[Problem]:
    """Everything that is wrong with a request: keys, types, then combinations."""
    for key, value in request.overrides.items():
        if not contract.knows(key):
            yield _unknown(key, value, contract)
        else:
            yield from _mistyped(key, value, contract)
    settings = effective(request)
    for rule in RULES:
        yield from rule(settings, request.section, contract)


def _unknown(key: str, value: Any, contract: Contract) -> Problem:
    underscored = str(key).lstrip("-").replace("-", "_")
    near = [underscored] if contract.knows(underscored) else difflib.get_close_matches(str(key), contract.keys, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}? Else leave it out" if near else "leave it out"
    return Problem(
        subject=f"{key}={value}",
        expected=f"a key that MindSpeed {contract.revision} or Megatron {contract.megatron} knows",
        found="one that neither does, and that repatch would swallow without effect",
        fix=f"{hint}; `verl-npu mindspeed --list` shows what there is",
    )


def _mistyped(key: str, value: Any, contract: Contract) -> Iterator[Problem]:
    argument = contract.arguments.get(key)
    if argument is not None:
        expected = _expected(argument, value)
    elif key in contract.fields:
        expected = _unfit(contract.fields[key], value)
    else:
        expected = ""
    if expected:
        fix = f"write {key}={_corrected(value)} without quotes" if isinstance(value, str) else f"give {expected}"
        yield Problem(f"{key}={value!r}", expected, f"{type(value).__name__} {value!r}", fix)


def _expected(argument: Argument, value: Any) -> str:
    """What the argument takes where `value` is not that, else nothing."""
    if value is None and argument.default is None:
        return ""
    if argument.choices and value not in argument.choices:
        return f"one of {', '.join(map(str, argument.choices))}"
    return "" if _is(value, argument.type) else argument.type


def _unfit(annotation: str, value: Any) -> str:
    # A null in the configuration stands for Megatron's own default, as in verl's own files.
    words = set(re.findall(r"[A-Za-z_]\w*", annotation.partition("Literal")[0]))
    if value is None or not words <= _WORDS or "Literal" in annotation:
        return ""
    kinds = [kind for kind in ("bool", "int", "float", "str") if kind in words]
    if {"List", "list"} & words:
        return "" if isinstance(value, list | tuple) or _any(value, kinds, annotation) else annotation
    return "" if not kinds or any(_is(value, kind) for kind in kinds) else annotation


def _any(value: Any, kinds: list[str], annotation: str) -> bool:
    outside = re.sub(r"[Ll]ist\[[^\]]*\]", "", annotation)
    return any(kind in outside and _is(value, kind) for kind in kinds)


def _is(value: Any, kind: str) -> bool:
    if kind not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


def _corrected(value: str) -> str:
    return value.strip("'\"").capitalize() if value.lower().strip("'\"") in ("true", "false") else value.strip("'\"")
