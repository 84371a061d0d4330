"""The operators that a model gets on this stack, read from the model itself, built on the meta device.

No family is listed here. The modules of the model and the functions that they call are looked up among the targets of
the patches and of upstream's own patches.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import CommandError, JobSettingError
from ..features.attention import FLASH_ATTENTION, UTILS
from ..features.attention.flash import refuse_ignored_settings
from ..features.linear_attention import linear_attention, missing_kernels
from ..language import gettext as _
from ..registry.source.tree import SourceTree
from ..registry.state import Word

if TYPE_CHECKING:
    from torch.nn import Module


class Way(Word):
    """The kind of code that computes an operator on an NPU."""

    PATCHED = "patched"
    """A patch of verl-npu."""
    NATIVE = "native"
    """NPU code of verl, transformers, or another package, a module of torch, or an own class of the engine."""
    FALLBACK = "fall-back"
    """Code for any device."""
    DRIFTED = "drifted"
    """A patch of verl-npu would, but it drifted or failed."""
    REFUSED = "refused"
    """None: the job ends."""
    ABSENT = "absent"
    """The package is not installed here."""


@dataclass(frozen=True, slots=True)
class Part:
    """One operator of a model, or a patch that belongs to no operator."""

    operator: str
    place: str
    """The class or function: `module:qualname`."""
    way: Way
    by: str
    """The patch, or the package or module with the NPU code."""
    reason: str = ""
    silent: bool = False
    """Whether nothing tells the user that it falls back, or that it ignores a setting."""


@dataclass(frozen=True, slots=True)
class Model:
    """The operators of the trainer's model, and the model class that the engine uses."""

    family: str
    architecture: str
    source: str
    """The `config.json`; empty for the default configuration of the family."""
    transformers: str
    parts: Sequence[Part]


Covers: TypeAlias = Mapping[str, Part]
"""The patches, by their targets."""
ATTENTION, LINEAR, ROTARY, NORM, MLP, EXPERTS, ENGINE = OPERATORS = (
    _("attention"),
    _("linear attention"),
    _("rotary embedding"),
    _("norm"),
    _("MLP"),
    _("experts"),
    _("engine"),
)
_LINEAR = re.compile("(Mamba2?|Mixer|DeltaNet|LinearAttention|LightningAttention|ShortConv|RecurrentBlock)$")
_MLP = re.compile("MLP|Mlp|FeedForward|FFN")
_ROTATES = re.compile("apply.*rot", re.IGNORECASE)
_NPU = re.compile("(^|_)npu(_|$)")
_EXPERTS = re.compile("(moe_)?(num|n)_(routed_|local_)?experts")
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_UNSUPPORTED = _(
    "{model} does not support flash_attention_2, which verl requests; set attn_implementation to sdpa or eager"
)
_REPLACED = _(
    "transformers uses {kernel}, a kernel for GPUs, instead of flash_attention_2; set attn_implementation to eager"
)
_IGNORES = _("flash attention on NPUs ignores {setting}; set attn_implementation to eager")
_WINDOW = _("a sequence longer than {setting} ends the job")


def read(model: str, covers: Covers) -> Model:
    """Build a model without weights from a `config.json` or the name of a model family. Look up the code that computes
    each of the model's operators.

    Raises CommandError if there is no such file or family, or if transformers cannot build the model.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        config, source = _configuration(model)
        built = _built(config)
    except CommandError:
        raise
    except Exception as error:  # a model's own code can raise anything
        raise CommandError(
            subject=model,
            expected=_("a model that transformers {version} can build").format(version=transformers.__version__),
            found=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            fix=_(
                "specify the folder of a model instead of a model family, because the default configuration of a "
                "family can be incomplete"
            ),
        ) from error
    parts: dict[tuple[str, str], Part] = {}
    for part in _parts(built, covers):
        # Layers of one class may have different settings: a reason in any of them counts.
        if (part.operator, part.place) not in parts or part.reason:
            parts[part.operator, part.place] = part
    ordered = sorted(parts.values(), key=lambda part: OPERATORS.index(part.operator))
    name = type(built).__name__
    return Model(config.model_type, name, source, transformers.__version__, [*ordered, _engine(name)])


def _configuration(model: str) -> tuple[Any, str]:
    """Return the configuration of MODEL, and the path of its file."""
    import transformers

    path = Path(model)
    file, family, content = path / "config.json" if path.is_dir() else path, model, {}
    if path.is_dir() or file.is_file():
        try:
            content = json.loads(file.read_text())
            family = str(content["model_type"])
        except (ValueError, KeyError, TypeError):
            family = ""
    if family in transformers.CONFIG_MAPPING:
        kind = transformers.CONFIG_MAPPING[family]
        return (kind.from_dict(content), str(file)) if content else (kind(), "")
    near = difflib.get_close_matches(family.lower().replace("-", "_"), list(transformers.CONFIG_MAPPING))
    raise CommandError(
        subject=model,
        expected=_(
            "a config.json with a model_type, a folder that contains one, or a model family that transformers "
            "{version} supports"
        ).format(version=transformers.__version__),
        found=repr(family),
        fix=_("did you mean {near}?").format(near=_(" or ").join(near))
        if near
        else _("install a version of transformers that supports this family"),
    )


def _built(config: Any) -> Module:
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    tasks = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "VISION_2_SEQ")
    tables = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in tasks)
    names = [*(config.architectures or ()), *(table.get(config.model_type, "") for table in tables)]
    kinds = [getattr(transformers, str(name), None) for name in names]
    for section in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        # transformers 4 makes a module of each expert, which takes minutes for thousands of them.
        for name in filter(_EXPERTS.fullmatch, vars(section) if section else ()):
            setattr(section, name, min(getattr(section, name) or 8, 8))
    config._attn_implementation = "eager"  # flash attention's classes are found without its package
    with torch.device("meta"):
        fitting = next(kind for kind in kinds if getattr(kind, "config_class", None) is type(config))
        return fitting(config)  # type: ignore[misc]


def _parts(model: Module, covers: Covers) -> Iterator[Part]:
    from transformers import PreTrainedModel

    owners = {path: module for path, module in model.named_modules() if isinstance(module, PreTrainedModel)}
    seen = set()
    for path, module in model.named_modules():
        key = (type(module), getattr(module, "sliding_window", None))
        if "experts" in path.split(".") or path in owners or key in seen:
            continue
        seen.add(key)
        operator, place = _operator(module), _place(type(module))
        if operator == ATTENTION:
            above = max((each for each in owners if not each or path.startswith(f"{each}.")), key=len)
            yield _attention(module, type(owners[above]), covers)
            rotating = (name for name in _called(type(module).forward) if _ROTATES.search(name.partition(":")[2]))
            yield from (_part(ROTARY, name, [name], covers) for name in rotating)
        elif operator == LINEAR:
            yield _linear(module, covers)
        elif operator:
            targets = [name for each in (module, getattr(module, "experts", module)) for name in _own(type(each))]
            yield _part(operator, place, targets, covers)


def _operator(module: Module) -> str:
    """Return the operator that a module computes; empty if it computes none, or contains several."""
    name, children = type(module).__name__, dict(module.named_children())
    if "Norm" in name:
        return NORM
    if _LINEAR.search(name) or "conv1d" in children:
        return LINEAR
    if "experts" in children or name.endswith("Experts"):
        return EXPERTS
    is_around = any("Attention" in type(child).__name__ for child in children.values())
    if _INTERFACE in _code(type(module).forward)[0] or (name.endswith("Attention") and not is_around):
        return ATTENTION
    return MLP if _MLP.search(name) and children else ""


def _attention(module: Module, owner: type, covers: Covers) -> Part:
    """Return the part that describes the attention of a module of the model class `owner` if verl requests its usual
    attention."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    kind = type(module)
    # Before transformers had one interface for attention, each family had a table of classes.
    tables = [table for table in vars(sys.modules[kind.__module__]).values() if isinstance(table, dict)]
    kinds = [table[FLASH_ATTENTION] for table in tables if FLASH_ATTENTION in table and kind in table.values()]
    forward = (kinds or [kind])[0].forward
    names, constants, _globals = _code(forward)
    function = ALL_ATTENTION_FUNCTIONS[FLASH_ATTENTION] if _INTERFACE in names else forward
    # Such a class imports its functions only where there is an NPU, or flash_attn.
    imported = [f"{UTILS}:{name}" for name in names]
    reached = _reached(function, 1 if function is kind.forward else 4)
    part = _part(ATTENTION, _place(kind), [*_own(kind), *reached, *imported], covers)
    refused = replace(part, way=Way.REFUSED, by="transformers", silent=False)
    if not any(getattr(owner, f"_supports_flash_attn{suffix}", False) for suffix in ("", "_2")):
        return replace(refused, reason=_UNSUPPORTED.format(model=owner.__name__))
    kernels = getattr(owner, "_compatible_flash_implementations", None) or [FLASH_ATTENTION]
    if FLASH_ATTENTION not in kernels:
        return replace(refused, reason=_REPLACED.format(kernel=kernels[0]))
    passed = {name for constant in constants if isinstance(constant, tuple) for name in constant}
    softcap = getattr(module, "attn_logit_softcapping", None) if "softcap" in passed else None
    sinks = getattr(module, "sinks", None) if "s_aux" in passed else None
    width = getattr(module, "sliding_window", getattr(getattr(module, "config", None), "sliding_window", None))
    always, window = _ignored(None, softcap, sinks), _ignored(width, None, None)
    if part.way is not Way.PATCHED and (always or window):
        return replace(part, reason=_IGNORES.format(setting=always or window), silent=True)
    if always:
        return replace(part, way=Way.REFUSED, reason=_IGNORES.format(setting=always))
    return replace(part, reason=_WINDOW.format(setting=window)) if window else part


def _ignored(window: int | None, softcap: float | None, sinks: object) -> str:
    """Return the setting that the NPU's flash attention ignores; empty if there is none."""
    try:
        refuse_ignored_settings(window, softcap, lambda: sys.maxsize, {"s_aux": sinks})
    except JobSettingError:
        settings = {"sliding_window": window, "attn_logit_softcapping": softcap, "attention sinks": ""}
        return next(f"{name}={value}".rstrip("=") for name, value in settings.items() if value is not None)
    return ""


def _linear(module: Module, covers: Covers) -> Part:
    kind, place = type(module), _place(type(module))
    own = [value for value in vars(module).values() if inspect.isroutine(value)]
    used = [name for each in (kind.__init__, kind.forward) for name in _called(each)]
    part = _part(
        LINEAR, place, [*_own(kind), *used, *map(_place, own)], covers, _(", ").join(each.__name__ for each in own)
    )
    known = {str(patch.target) for patch in linear_attention}
    if part.way in (Way.PATCHED, Way.NATIVE) and known & set(_own(kind)):
        # The patch, and from 5.15 on transformers itself, use the kernels only if they are installed.
        reason = missing_kernels()
        return replace(part, way=Way.FALLBACK, by="", reason=reason) if reason else part
    foreign = [each.__module__ for each in own if not each.__module__.startswith(("torch.", "transformers."))]
    if part.way is Way.FALLBACK and foreign:
        return replace(part, way=Way.NATIVE, by=foreign[0], silent=False)
    names = {name for each in (kind.__init__, kind.forward) for name in _code(each)[0]}
    methods = [each for each in (getattr(kind, name, None) for name in names) if inspect.isfunction(each)]
    warns = {"warning", "warning_once"} & names.union(*(_code(each)[0] for each in methods))
    return replace(part, silent=part.silent and not warns)


def _part(operator: str, place: str, targets: Sequence[str], covers: Covers, reason: str = "") -> Part:
    """Return the part at `place`. The first of its targets that is covered counts; `reason` is for none."""
    found = [covers[target] for target in targets if target in covers]
    for cover in found:
        if cover.way is not Way.FALLBACK:
            return replace(cover, operator=operator, place=place)
    own = [target for target in targets[:2] if target.startswith("torch.")]
    for target in own or (target for target in targets if _NPU.search(target.partition(":")[2])):
        return Part(operator, place, Way.NATIVE, target.partition(".")[0])
    return Part(operator, place, Way.FALLBACK, "", found[0].reason if found else reason, silent=True)


def _place(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _own(kind: Any) -> list[str]:
    """Return the targets that are a class or its forward pass, which it may inherit."""
    return [f"{_place(kind)}.forward", _place(kind.forward), f"{_place(kind)}.__init__", _place(kind)]


def _code(function: Callable[..., object]) -> tuple[Sequence[str], Sequence[object], Mapping[str, object]]:
    """Return the names and constants in a function's code, and its globals."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    return (code.co_names, code.co_consts, plain.__globals__) if code else ((), (), {})


def _called(function: Callable[..., object]) -> dict[str, object]:
    """Return the names of its module that a function uses, as `module:name`."""
    names, _constants, space = _code(function)
    return {f"{space['__name__']}:{name}": space[name] for name in names if name in space}


def _reached(function: Any, depth: int) -> Iterator[str]:
    """Yield the targets that a call reaches within transformers, down to its NPU code."""
    yield _place(function)
    for name, value in _called(function).items() if depth else ():
        yield name
        if inspect.isfunction(value) and value.__module__.startswith("transformers."):
            yield from _reached(value, depth - 1)


def _engine(architecture: str) -> Part:
    """Return the class that vLLM has for an architecture, from the source of vLLM and vllm-ascend."""
    tree = SourceTree.installed(["vllm", "vllm_ascend"])
    registry = tree.parse("vllm.model_executor.models.registry") if "vllm" in tree else None
    if registry is None:
        return Part(ENGINE, "", Way.ABSENT, "", _("vLLM is not installed here"))
    models = tree.parse("vllm_ascend.models") if "vllm_ascend" in tree else None
    calls = [node for node in ast.walk(models or registry) if isinstance(node, ast.Call) and len(node.args) == 2]
    own = {_text(call.args[0]): _text(call.args[1]) for call in calls if "register_model" in ast.unparse(call.func)}
    if architecture in own:
        return Part(ENGINE, own[architecture], Way.NATIVE, "vllm_ascend")
    tables = [node for node in ast.walk(registry) if isinstance(node, ast.Dict)]
    found = {_text(key): value for each in tables for key, value in zip(each.keys, each.values, strict=True)}
    entry = found.get(architecture)
    if isinstance(entry, ast.Constant):
        return Part(ENGINE, "", Way.REFUSED, "vllm", _("vLLM has dropped it: {text}").format(text=entry.value))
    module, name = map(_text, entry.elts) if isinstance(entry, ast.Tuple) else ("transformers", "")
    if module == "transformers":
        return Part(ENGINE, name, Way.FALLBACK, "vllm", _("vLLM runs the code of transformers, and logs it"))
    missing = "" if "vllm_ascend" in tree else _("vllm-ascend is not installed here")
    return Part(ENGINE, f"vllm.model_executor.models.{module}:{name}", Way.NATIVE, "vllm", missing)


def _text(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""
