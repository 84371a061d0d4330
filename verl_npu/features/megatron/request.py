"""A worker's request to MindSpeed: its overrides, and the settings that MindSpeed gets because of them.

This module also parses requests as a user types them: `key=value …`, a Hydra command line, or a shell script that
contains one. A value that the shell or Hydra would still replace, such as `${TP}`, is kept as it is written. Rules
that depend on such a value are skipped.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import CommandError

if TYPE_CHECKING:
    from .contract import Contract

OVERRIDE = "VERL_NPU_DISABLE=megatron"
"""The setting that prevents verl-npu from changing MindSpeed."""


# The settings in a worker's `megatron` section that the rules read.
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
    "vanilla_mbridge",
)
GROUPS_NOT_READ = ("override_transformer_config", "llm_kwargs")
"""Groups of overrides that users write into the section of the MindSpeed-LLM engine. The engine reads neither of
them."""


class Engine(enum.Enum):
    """The upstream engine that passes the overrides to MindSpeed. The value is the name of the engine's section in the
    configuration."""

    MEGATRON = "megatron"
    MINDSPEED_LLM = "mindspeed"
    """`model_engine=mindspeed` at v0.8.0 and v0.9. The overrides are in `mcore_kwargs`. MindSpeed-LLM passes them on,
    and also initializes Megatron's own arguments from them. Each feature's validate_args checks these arguments."""

    @property
    def overrides(self) -> str:
        """The key in the engine's section that contains the overrides."""
        return "override_transformer_config" if self is Engine.MEGATRON else "mcore_kwargs"


@dataclass(frozen=True, slots=True)
class Request:
    """A worker's request to MindSpeed: the worker's overrides, and the section of the engine that contains them."""

    worker: str
    overrides: Mapping[str, object]
    section: Mapping[str, object]
    engine: Engine = Engine.MEGATRON
    forward: bool = True
    """Whether the worker may run the model's forward pass. Upstream's checkpoint converter never does."""


def effective(request: Request) -> dict[str, object]:
    """Return the overrides of a request, together with the additional overrides that the documentation of verl or
    MindSpeed requires.

    Flash attention is added unless the overrides request batch-invariant flash attention. The context-parallel size is
    copied from the engine's section of the configuration, as are the settings that mc2 and the swapped optimizer
    expect in MindSpeed's arguments.
    """
    settings = dict(request.overrides)
    section = {key: value for key, value in request.section.items() if value is not None}
    settings.setdefault("use_flash_attn", _negated(settings.get("use_flash_attn_npu_batch_invariant")))
    size = section.get("context_parallel_size", 1)
    if isinstance(size, Unexpanded) or (isinstance(size, int) and size > 1):
        settings.setdefault("context_parallel_size", size)
    wanted: tuple[str, ...] = ()
    if settings.get("use_ascend_mc2"):
        wanted += ("sequence_parallel", "tensor_model_parallel_size")
    if settings.get("swap_optimizer"):
        wanted += ("use_distributed_optimizer",)
    for key in wanted:
        if key in section:
            settings.setdefault(key, section[key])
    return settings


def _negated(value: object) -> object:
    return Unexpanded(f"not {value}", value.kind) if isinstance(value, Unexpanded) else not value


def not_judged(request: Request, contract: Contract) -> dict[str, Unexpanded]:
    """Return the settings that the rules cannot judge, as a mapping from names to values.

    These are values that still contain a reference or a shell expression, and command-line arguments of MindSpeed-LLM
    and Megatron that are not recorded in any contract.
    """
    section = {f"{request.engine.value}.{key}": value for key, value in request.section.items()}
    found = {key: value for key, value in {**request.overrides, **section}.items() if isinstance(value, Unexpanded)}
    if request.engine is Engine.MINDSPEED_LLM:
        kind = "may be an argument of MindSpeed-LLM or of Megatron's own, which are not recorded"
        foreign = {key: value for key, value in request.overrides.items() if not contract.knows(key)}
        found |= {key: Unexpanded(str(value), kind) for key, value in foreign.items() if key not in found}
    return found


# Hydra's own references have a dot or a resolver: ${actor_rollout_ref.actor.x}, ${oc.env:HOME}.
_REFERENCE = re.compile(r"\$\{\w+\.")
_COMMAND = re.compile(r"\$\(|`")
_VARIABLE = re.compile(r"\$[{\w@*#?!]")


@dataclass(frozen=True, slots=True)
class Unexpanded:
    """A value that the shell or Hydra has not expanded yet, as the author wrote it."""

    text: str
    kind: str
    """Why it is not expanded yet, as the end of a sentence: "is a shell variable"."""

    def __str__(self) -> str:
        return self.text


def unexpanded(text: str) -> Unexpanded | None:
    """Return `text` as an `Unexpanded` value if it contains a reference, a shell command, or a shell variable.
    Otherwise, return None."""
    if _REFERENCE.search(text):
        return Unexpanded(text, "is a reference to another setting")
    if _COMMAND.search(text):
        return Unexpanded(text, "is computed by the shell")
    if _VARIABLE.search(text):
        return Unexpanded(text, "is a shell variable")
    return None


class UnknownValueError(Exception):
    """Raised when a rule needs a value that is not expanded yet. The rule is then skipped, so that no user sees this
    error."""


class Known(Mapping[str, object]):
    """A mapping that raises UnknownValueError if the value of a key is not expanded yet."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, Unexpanded):
            raise UnknownValueError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)


# Defaults in upstream's configuration files, the same at every pin.
_DEFAULTS: dict[str, object] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
}


# Defaults of upstream's mindspeed.yaml for MindSpeed-LLM, at v0.8.0 and v0.9, of the keys that the rules read.
_MINDSPEED_LLM_DEFAULTS: dict[str, object] = {
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "reset_attention_mask": True,
    "seq_length": 10240,
    "micro_batch_size": 1,
    "swiglu": True,
    "use_flash_attn": True,
    "use_fused_rmsnorm": True,
    "use_fused_rotary_pos_emb": True,
    "use_fused_swiglu": True,
}


# Keys that the reference's section takes from the actor's at every pin that has them.
_ACTOR_KEYS = ("use_mbridge", "vanilla_mbridge")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
Parts = tuple[dict[str, object], dict[str, object]]
"""The overrides of one worker, and its section."""


def requests(text: str) -> list[Request]:
    """Return the request of each worker whose overrides are in a text, in the order of the workers' first overrides.

    Raises CommandError if the text cannot be read, or if it has no override for Megatron.
    """
    words = _words(text)
    pairs = [match for word in words if (match := _OVERRIDE.fullmatch(word))]
    sections: dict[tuple[Engine, str], Parts] = {}
    for match in pairs:
        for engine in Engine:
            worker, separator, key = match["key"].rpartition(f".{engine.value}.")
            if separator:
                _put(sections.setdefault((engine, worker), ({}, dict(_DEFAULTS))), engine, key, _value(match["value"]))
    if sections:
        return [_request(sections, engine, worker) for engine, worker in sections]
    # Without a section, the arguments are the overrides.
    bare = {match["key"]: _value(match["value"]) for match in pairs if "." not in match["key"]}
    if len(pairs) != len(words) or not bare:
        raise _unreadable(text, "no Megatron override")
    return [Request("the overrides", bare, {})]


def _put(parts: Parts, engine: Engine, key: str, value: object) -> None:
    overrides, section = parts
    group, separator, name = key.partition(".")
    if separator and group == engine.overrides:
        overrides[name] = value
    elif separator and group in GROUPS_NOT_READ and engine is Engine.MINDSPEED_LLM:
        section[group] = name
    elif key in SECTION_KEYS:
        section[key] = value


def _request(sections: Mapping[tuple[Engine, str], Parts], engine: Engine, worker: str) -> Request:
    overrides, section = sections[engine, worker]
    role, separator, _ = worker.rpartition(".ref")
    if separator and not overrides:
        # In upstream's configuration, the reference uses the actor's overrides unless it has its own.
        overrides, actors = sections.get((engine, f"{role}.actor"), ({}, {}))
        section = {**{key: actors[key] for key in _ACTOR_KEYS if key in actors}, **section}
    if engine is Engine.MINDSPEED_LLM:
        overrides = {**_MINDSPEED_LLM_DEFAULTS, **overrides}
    return Request(worker, overrides, section, engine)


def _words(text: str) -> list[str]:
    """Split text as a shell does. Comment lines are dropped, and continued lines are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    # A script may end in a backslash, because `$(cat run.sh)` removes the line break after it.
    joined = "\n".join(lines).replace("\\\n", " ").rstrip().removesuffix("\\")
    try:
        return shlex.split(joined)
    except ValueError as error:
        raise _unreadable(text, str(error)) from error


def _unreadable(text: str, found: str) -> CommandError:
    return CommandError(
        subject=f"--check {text[:80]!r}",
        expected="'key=value …', or a Hydra command line with <worker>.megatron.override_transformer_config.key=value "
        "or <worker>.mindspeed.mcore_kwargs.key=value",
        found=found,
        fix="pass the overrides, the whole command line, or the script as one quoted argument",
    )


def _value(text: str) -> object:
    """Return a value as Hydra reads it. For example, a quoted text is a string, and `1` is a number."""
    text = text.strip()
    if (value := unexpanded(text)) is not None:
        return value
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [_value(part) for part in _parts(text[1:-1]) if part.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parts(text: str) -> list[str]:
    """Split text at its commas, except commas inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
