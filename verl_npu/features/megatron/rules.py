"""Rules for the overrides of one worker. They find settings that MindSpeed would reject, ignore, or misinterpret.

A finding is an error, and the job is rejected, if the failure was seen with the real MindSpeed, Megatron, and verl on
virtual NPUs (tests/features/megatron/test_refusals.py). Other findings are warnings: MindSpeed's documentation forbids
the setting, or the setting has no effect. From MindSpeed 2.2.0 on, creating a model's configuration calls
`validate_args`. In these versions, a setting that `validate_args` forbids is an error, too. The rules need only the
overrides. So they work for a launch script as well as in the job.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...errors import JobSettingError
from ...findings import Finding, Rule, Severity, Stage
from ...reporting import warn
from .contract import Argument, Contract
from .request import OVERRIDE, Engine, Known, Request, Unexpanded, UnknownValueError, effective

_ATTENTION_BACKENDS = ("flash", "fused", "unfused", "local", "auto")  # the members of Megatron's AttnBackend
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool, int),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
}
_TYPE_NAMES = {"Optional", "Union", "List", "list", "Literal", "None", "bool", "int", "float", "str", "typing"}
_FALSE = ("false", "no", "off", "0", "")

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of the rules. Looking up a value that is not expanded yet raises UnknownValueError."""

    request: Request
    contract: Contract
    settings: Settings
    """The overrides, plus the settings that verl-npu adds to them."""
    section: Settings


def check(request: Request, contract: Contract) -> dict[str, object]:
    """Return the effective overrides of a request, and print warnings about settings that may be incorrect.

    If settings are certainly incorrect, nothing is changed, and JobSettingError names all of these settings.
    """
    found = list(problems(request, contract))
    for doubt in (problem for problem in found if not problem.refused):
        warn(f"{request.worker}: override_transformer_config.{in_words(doubt)}")
    refused = [problem for problem in found if problem.refused]
    if not refused:
        return effective(request)
    first, *others = refused
    raise JobSettingError(
        subject=f"{request.worker}: override_transformer_config.{first.subject}",
        expected=first.expected,
        found=first.found,
        fix="; and ".join([first.fix, *map(in_words, others)]),
        override=OVERRIDE,
    )


def problems(request: Request, contract: Contract) -> Iterator[Finding]:
    """Yield the definite and possible problems of a request: first problems with keys, then problems with types, and
    then problems with combinations of keys.

    Unexpanded values, and combinations that contain them, are skipped.
    """
    asked = Asked(request, contract, Known(effective(request)), Known(request.section))
    for rule in RULES:
        with contextlib.suppress(UnknownValueError):
            for problem in rule.ask(asked):
                # Neither MindSpeed-LLM nor a MindSpeed on MegatronAdaptor runs on virtual NPUs, so we have only
                # seen how verl starts them.
                run = request.engine is Engine.MEGATRON and not contract.adaptor
                shown = run or rule.ask is _unread_group
                yield replace(problem, code=rule.code, severity=problem.severity if shown else Severity.WARNING)


def in_words(problem: Finding) -> str:
    """Describe a problem in one line."""
    return f"{problem.subject}: expected {problem.expected}; found {problem.found}; {problem.fix}"


def _shown(key: str, settings: Mapping[str, object]) -> str:
    value = settings.get(key)
    return f"no {key}" if value is None else f"{key}={value}"


def _problem(subject: str, expected: str, found: str, fix: str, certain: bool = True) -> Finding:
    """Create a problem: an error if the job is `certain` to fail, otherwise a warning. `problems` adds the code of the
    rule."""
    severity = Severity.ERROR if certain else Severity.WARNING
    return Finding(code="", severity=severity, subject=subject, expected=expected, found=found, fix=fix)


def _unread_group(asked: Asked) -> Iterator[Finding]:
    if asked.request.engine is not Engine.MINDSPEED_LLM:
        return
    section, fix = asked.request.section, "write mindspeed.mcore_kwargs instead"
    if "llm_kwargs" in section:
        yield _problem(
            f"(mindspeed.llm_kwargs.{section['llm_kwargs']})",
            "mcore_kwargs, because upstream's MindSpeedEngineConfig ends llm_kwargs with a TypeError, although "
            "upstream's documentation names llm_kwargs",
            "llm_kwargs",
            fix,
        )
    if "override_transformer_config" in section:
        yield _problem(
            f"(mindspeed.override_transformer_config.{section['override_transformer_config']})",
            "mcore_kwargs, because upstream does not build the model from override_transformer_config",
            "override_transformer_config",
            fix,
            certain=False,
        )


def _key_or_type(asked: Asked) -> Iterator[Finding]:
    """Find keys that no code reads, and values that fail, mean the opposite, or have an invalid type."""
    request, contract = asked.request, asked.contract
    for key, value in request.overrides.items():
        if not contract.knows(key):
            if request.engine is Engine.MEGATRON:
                yield _unknown(key, value, contract, request)
        elif not isinstance(value, Unexpanded):
            yield from _mistyped(key, value, contract)


def _size_not_a_number(asked: Asked) -> Iterator[Finding]:
    request = asked.request
    # A reference worker gives Megatron the actor's sizes. In its own section, 796871d7 has the text None by default.
    read = request.worker.rpartition(".")[2] != "ref"
    for key, value in request.section.items():
        if key.endswith("_size") and isinstance(value, str) and (read or value != "None"):
            subject = f"({request.engine.value}.{key}={value})"
            yield _problem(subject, "a whole number", f"the text {value!r}", f"write {key} as a number", certain=read)


def _flash_attention(asked: Asked) -> Iterator[Finding]:
    settings, contract = asked.settings, asked.contract
    if settings.get("use_flash_attn_npu_batch_invariant"):
        if settings.get("use_flash_attn"):
            yield _problem(
                "use_flash_attn=True",
                "False with use_flash_attn_npu_batch_invariant=True, because the two replace the same function",
                "True",
                "remove use_flash_attn",
                certain=contract.knows("use_flash_attn_npu_batch_invariant"),
            )
        return
    if not settings.get("use_flash_attn"):
        yield _problem(
            f"use_flash_attn={settings.get('use_flash_attn')}",
            "True, because without flash attention MindSpeed finds no attention mask in the first forward pass",
            str(settings.get("use_flash_attn")),
            "remove use_flash_attn, which is on by default",
            # With a micro-batch size, MindSpeed creates a mask, which may be incorrect.
            certain=asked.request.forward and not {"micro_batch_size", "seq_length"} <= settings.keys(),
        )
    elif settings.get("sparse_mode", 0) not in (0, 2):
        yield _problem(
            f"sparse_mode={settings['sparse_mode']}",
            "0 or 2 with use_flash_attn",
            str(settings["sparse_mode"]),
            "remove sparse_mode",
            certain=contract.validates,
        )


def _context_parallel(asked: Asked) -> Iterator[Finding]:
    settings, section = asked.settings, asked.section
    size = section.get("context_parallel_size")
    if size is not None and settings.get("context_parallel_size", size) != size:
        yield _problem(
            f"context_parallel_size={settings['context_parallel_size']}",
            f"the size of verl's process groups, megatron.context_parallel_size={size}",
            str(settings["context_parallel_size"]),
            "remove the override, because verl-npu adds the right value, or set the two to the same value",
            certain=asked.request.forward,
        )


def _fused_rope(asked: Asked) -> Iterator[Finding]:
    settings, contract = asked.settings, asked.contract
    # Before 2.2.0, nothing checks the type if it is not set.
    if not contract.validates and "position_embedding_type" not in settings:
        return
    if settings.get("use_fused_rotary_pos_emb") and settings.get("position_embedding_type") != "rope":
        yield _problem(
            "use_fused_rotary_pos_emb=True",
            "position_embedding_type=rope",
            _shown("position_embedding_type", settings),
            "add +….override_transformer_config.position_embedding_type=rope",
            certain=contract.validates,
        )


def _fused_rmsnorm(asked: Asked) -> Iterator[Finding]:
    settings = asked.settings
    if settings.get("use_fused_rmsnorm") and settings.get("normalization", "RMSNorm") != "RMSNorm":
        yield _problem(
            "use_fused_rmsnorm=True",
            "normalization=RMSNorm",
            f"normalization={settings['normalization']}",
            "set normalization=RMSNorm, or remove use_fused_rmsnorm",
            certain=False,
        )


def _fused_swiglu(asked: Asked) -> Iterator[Finding]:
    settings = asked.settings
    if settings.get("use_fused_swiglu") and settings.get("swiglu", True) is not True:
        yield _problem(
            "use_fused_swiglu=True",
            "swiglu=True, because MindSpeed always fuses SwiGLU",
            f"swiglu={settings['swiglu']}",
            "set swiglu=True, or remove use_fused_swiglu",
            certain=False,
        )


def _swap_optimizer(asked: Asked) -> Iterator[Finding]:
    settings, section = asked.settings, asked.section
    distributed = settings.get("use_distributed_optimizer", section.get("use_distributed_optimizer"))
    # Upstream's own configuration switches the distributed optimizer on.
    if settings.get("swap_optimizer") and distributed is not None and not distributed:
        yield _problem(
            "swap_optimizer=True",
            "use_distributed_optimizer=True, because swap_optimizer swaps the distributed optimizer's states",
            f"use_distributed_optimizer={distributed}",
            "set megatron.use_distributed_optimizer=True, or remove swap_optimizer",
        )


def _mbridge(asked: Asked) -> Iterator[Finding]:
    section = asked.section
    stages = section.get("virtual_pipeline_model_parallel_size")
    if section.get("use_mbridge") and stages not in (None, 1):
        yield _problem(
            "(megatron.use_mbridge=True)",
            "no virtual pipeline with mbridge, according to MindSpeed's documentation",
            f"megatron.virtual_pipeline_model_parallel_size={stages}",
            "if the job fails, remove megatron.use_mbridge or megatron.virtual_pipeline_model_parallel_size",
            # Some of upstream's own scripts set both.
            certain=False,
        )


def _mc2(asked: Asked) -> Iterator[Finding]:
    settings, section, contract = asked.settings, asked.section, asked.contract
    if not settings.get("use_ascend_mc2"):
        return
    size = settings.get("tensor_model_parallel_size", section.get("tensor_model_parallel_size"))
    sequence = settings.get("sequence_parallel", section.get("sequence_parallel"))
    if not sequence or size in (None, 1):
        yield _problem(
            "use_ascend_mc2=True",
            "sequence parallelism over a tensor-parallel group of at least 2 ranks",
            _shown("sequence_parallel", {"sequence_parallel": sequence})
            + " and "
            + _shown("tensor_model_parallel_size", {"tensor_model_parallel_size": size}),
            "set megatron.sequence_parallel=True and megatron.tensor_model_parallel_size, or remove use_ascend_mc2",
            # With sequence parallelism off, older revisions switch mc2 off too, and newer ones have no linear layer.
            certain=contract.validates or sequence is None or size is None,
        )
    if settings.get("use_ascend_coc"):
        fix = "remove use_ascend_mc2 or use_ascend_coc"
        yield _problem("use_ascend_mc2=True", "use_ascend_coc off", _shown("use_ascend_coc", settings), fix)


def _dispatcher(asked: Asked) -> Iterator[Finding]:
    settings = asked.settings
    if settings.get("moe_token_dispatcher_type") == "allgather" and settings.get("variable_seq_lengths", True):
        yield _problem(
            "moe_token_dispatcher_type=allgather",
            "alltoall, because verl needs variable sequence lengths and Megatron's allgather dispatcher does not "
            "support them",
            "allgather",
            "remove moe_token_dispatcher_type: upstream's own value is alltoall",
        )


def _moe_permutation(asked: Asked) -> Iterator[Finding]:
    settings, contract = asked.settings, asked.contract
    key = next((k for k in ("use_fused_moe_token_permute_and_unpermute", "moe_permute_fusion") if settings.get(k)), "")
    if key and settings.get("moe_expert_capacity_factor") and not settings.get("moe_pad_expert_input_to_capacity"):
        yield _problem(
            f"{key}=True",
            "moe_pad_expert_input_to_capacity=True with moe_expert_capacity_factor",
            _shown("moe_pad_expert_input_to_capacity", settings),
            "set moe_pad_expert_input_to_capacity=True, or remove moe_expert_capacity_factor",
            certain=contract.validates,
        )


def _latent_attention(asked: Asked) -> Iterator[Finding]:
    """Check the sizes for MindSpeed's own latent attention. MindSpeed reads them only from the overrides, not from
    Megatron's fields."""
    settings, contract = asked.settings, asked.contract
    if not settings.get("multi_head_latent_attention"):
        return
    wanted = ("qk_rope_head_dim", "qk_nope_head_dim") if contract.validates else ()
    missing = [key for key in (*wanted, "seq_length") if settings.get(key) is None]
    if missing:
        yield _problem(
            "multi_head_latent_attention=True",
            f"{' and '.join(missing)}, because MindSpeed does not read {'it' if len(missing) == 1 else 'them'} from "
            "the model",
            " and ".join(f"no {key}" for key in missing),
            f"add {' and '.join(missing)} with the values in the model's config.json, or use "
            "multi_latent_attention=True, which needs no such settings",
            # Only a forward pass needs the length.
            certain=asked.request.forward or missing != ["seq_length"],
        )


def _attention_backend(asked: Asked) -> Iterator[Finding]:
    settings = asked.settings
    value = settings.get("attention_backend")
    if isinstance(value, str) and value not in _ATTENTION_BACKENDS:
        expected = f"one of {', '.join(_ATTENTION_BACKENDS)}"
        fix = "remove attention_backend: upstream's own value is flash"
        yield _problem(f"attention_backend={value}", expected, value, fix)


def _recomputation(asked: Asked) -> Iterator[Finding]:
    settings = asked.settings
    granularity, method = settings.get("recompute_granularity"), settings.get("recompute_method")
    if granularity == "full" and (method is None or settings.get("recompute_num_layers") is None):
        yield _problem(
            "recompute_granularity=full",
            "recompute_method and recompute_num_layers",
            " and ".join(_shown(key, settings) for key in ("recompute_method", "recompute_num_layers")),
            "set recompute_granularity, recompute_method, and recompute_num_layers together",
        )
    if granularity != "full" and method is not None:
        yield _problem(
            f"recompute_method={method}",
            "recompute_granularity=full, because recompute_method has no effect otherwise",
            _shown("recompute_granularity", settings),
            "set recompute_granularity=full, or remove recompute_method",
            certain=False,
        )


def _declared_by_mindspeed(asked: Asked) -> Iterator[Finding]:
    """Check the conflicts and requirements that the enabled features declare in their own validation in MindSpeed."""
    for name in asked.contract.features:
        if name != "use_ascend_mc2":
            with contextlib.suppress(UnknownValueError):
                yield from _declared(name, asked)


def _declared(name: str, asked: Asked) -> Iterator[Finding]:
    settings, contract = asked.settings, asked.contract
    if not settings.get(name):
        return
    facts, certain, subject = contract.features[name], contract.validates, f"{name}={settings[name]}"
    for other in facts.conflicts:
        if settings.get(other):
            yield _problem(subject, f"{other} off", f"{other}={settings[other]}", f"remove {name} or {other}", certain)
    for other in facts.needs:
        # Megatron's configuration may still get a field from the model. Such a key cannot be judged here.
        missing = other in contract.arguments and not settings.get(other)
        if other != "use_distributed_optimizer" and (missing or settings.get(other) is False):
            yield _problem(subject, f"{other} on", _shown(other, settings), f"set {other}, or remove {name}", certain)


def _unknown(key: str, value: object, contract: Contract, request: Request) -> Finding:
    underscored = str(key).lstrip("-").replace("-", "_")
    near = [underscored] if contract.knows(underscored) else difflib.get_close_matches(str(key), contract.keys, 3, 0.6)
    hint = f"write {' or '.join(near)}, or remove {key}" if near else f"remove {key}"
    return _problem(
        subject=f"{key}={value}",
        expected=f"a key that MindSpeed {contract.revision} or Megatron {contract.megatron} supports",
        found="an unknown key, which has no effect",
        fix=f"{hint}; `verl-npu lint --list-overrides` lists the known overrides",
        # Megatron-Bridge has its own configurations, which have more fields than Megatron's.
        certain=request.section.get("vanilla_mbridge", True) is not False,
    )


def _mistyped(key: str, value: object, contract: Contract) -> Iterator[Finding]:
    """Check the type of a value. `repatch` converts no values, but many incorrect types still work; these are only
    warnings."""
    argument = contract.arguments.get(key)
    # Megatron's command line declares some switches of features, such as use_flash_attn, that no contract records.
    field = contract.fields.get(key, "bool" if key.startswith("use_") and key in contract.features else "")
    if argument is not None:
        expected, kinds = _wrong_type(argument, value), {argument.type}
    else:
        expected, kinds = _wrong_annotation(field, value), _kinds(field)
    if not expected:
        return
    corrected = _corrected(value) if isinstance(value, str) else ""
    fix = f"write {key}={corrected} without quotes" if corrected else f"use {expected}"
    if kinds == {"bool"} and corrected not in ("True", "False"):
        fix = f"write {key}=True or {key}=False, or remove {key}"
    # A string instead of False is true. A string or an invalid number instead of one of Megatron's numbers ends in a
    # TypeError.
    reversed_ = isinstance(value, str) and "bool" in kinds and value.strip("'\"").lower() in _FALSE
    number = bool(field) and kinds <= {"int", "float"} and isinstance(value, str | float)
    certain = reversed_ or number
    yield _problem(f"{key}={value!r}", expected, f"{type(value).__name__} {value!r}", fix, certain)


def _wrong_type(argument: Argument, value: object) -> str:
    """Return the values that MindSpeed's command line accepts, or an empty string if it accepts `value`."""
    if value is None and argument.default is None:
        return ""
    if argument.choices and value not in argument.choices:
        return f"one of {', '.join(map(str, argument.choices))}"
    if argument.type == "str" and isinstance(value, list | tuple):
        return ""
    return "" if _has_type(value, argument.type) else argument.type


def _kinds(annotation: str) -> set[str]:
    return {kind for kind in ("bool", "int", "float", "str", "List", "list") if kind in _words(annotation)}


def _words(annotation: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", annotation.partition("Literal")[0]))


def _wrong_annotation(annotation: str, value: object) -> str:
    """Return the annotation of a Megatron field, or an empty string if `value` fits the annotation."""
    # A null in verl's configuration files stands for Megatron's default. Megatron treats False like null.
    absent = value is None or (value is False and "Optional" in annotation)
    if absent or not _words(annotation) <= _TYPE_NAMES or "Literal" in annotation:
        return ""
    kinds = _kinds(annotation)
    if kinds & {"List", "list"}:
        return "" if isinstance(value, list | tuple) or _fits_outside_lists(value, kinds, annotation) else annotation
    return "" if not kinds or any(_has_type(value, kind) for kind in kinds) else annotation


def _fits_outside_lists(value: object, kinds: set[str], annotation: str) -> bool:
    outside = re.sub(r"[Ll]ist\[[^\]]{0,200}\]", "", annotation)
    return any(kind in outside and _has_type(value, kind) for kind in kinds)


def _has_type(value: object, kind: str) -> bool:
    if kind not in _TYPES:
        return True
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


def _corrected(value: str) -> str:
    return value.strip("'\"").capitalize() if value.lower().strip("'\"") in ("true", "false") else value.strip("'\"")


RULES = tuple(
    Rule(f"mindspeed-{code}", ask, (Stage.SCRIPT, Stage.JOB), about=about)
    for code, ask, about in (
        (
            "group-of-overrides",
            _unread_group,
            "A group of overrides that MindSpeed-LLM's engine does not read.",
        ),
        (
            "key-or-type",
            _key_or_type,
            "A key that neither MindSpeed nor Megatron reads, or a value that fails, means the opposite, or has an "
            "invalid type.",
        ),
        (
            "size-no-number",
            _size_not_a_number,
            "A parallel size that is not a number, for example because a variable is empty.",
        ),
        (
            "flash-attention",
            _flash_attention,
            "Flash attention that is off, on in two forms at once, or on with a sparse mode that MindSpeed does not "
            "support.",
        ),
        (
            "context-parallel",
            _context_parallel,
            "A size of context parallelism that differs from verl's process groups.",
        ),
        (
            "fused-rope",
            _fused_rope,
            "The fused rotary embedding without position_embedding_type=rope.",
        ),
        (
            "fused-rmsnorm",
            _fused_rmsnorm,
            "The fused RMSNorm with another normalization.",
        ),
        (
            "fused-swiglu",
            _fused_swiglu,
            "The fused SwiGLU with swiglu=False, though MindSpeed always fuses SwiGLU.",
        ),
        (
            "swap-optimizer",
            _swap_optimizer,
            "swap_optimizer without the distributed optimizer, whose states it swaps.",
        ),
        (
            "mbridge-virtual-pipeline",
            _mbridge,
            "A virtual pipeline with mbridge, which MindSpeed's documentation excludes.",
        ),
        (
            "mc2",
            _mc2,
            "The fused operators of computation and communication (mc2) without sequence parallelism, or with CoC.",
        ),
        (
            "allgather-dispatcher",
            _dispatcher,
            "The allgather dispatcher with variable sequence lengths, which verl needs.",
        ),
        (
            "moe-permutation",
            _moe_permutation,
            "Fused token permutation with an expert capacity, but without padding to that capacity.",
        ),
        (
            "latent-attention",
            _latent_attention,
            "MindSpeed's own latent attention without the sizes that it reads only from the overrides.",
        ),
        (
            "attention-backend",
            _attention_backend,
            "An attention backend that Megatron does not have.",
        ),
        (
            "recomputation",
            _recomputation,
            "Recomputation settings that need each other, where one is missing.",
        ),
        (
            "declared-by-mindspeed",
            _declared_by_mindspeed,
            "The conflicts and requirements that MindSpeed's enabled features declare in their own validation.",
        ),
    )
)
"""All rules, in the order of their findings."""
