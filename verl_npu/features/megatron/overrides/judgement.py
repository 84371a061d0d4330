"""Whether MindSpeed will do with the overrides of a worker what their author meant."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ....errors import OverrideError
from ....reporting import warn
from .contract import Argument, Contract
from .request import OVERRIDE, Engine, Request, effective
from .rules import Problem, rules
from .unexpanded import Known, Unexpanded, UnknownValueError

__all__ = ["check", "problems"]

_PLAIN: dict[str, tuple[type, ...]] = {
    "bool": (bool, int),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
}
_WORDS = {"Optional", "Union", "List", "list", "Literal", "None", "bool", "int", "float", "str", "typing"}
_FALSE = ("false", "no", "off", "0", "")


def check(request: Request, contract: Contract) -> dict[str, object]:
    """Return `effective(request)`, and say what may be wrong with it.

    Raises OverrideError, which names all that is certainly wrong, before anything is changed.
    """
    found = list(problems(request, contract))
    for doubt in (problem for problem in found if not problem.certain):
        warn(f"{request.worker}: override_transformer_config.{doubt}")
    refused = [problem for problem in found if problem.certain]
    if not refused:
        return effective(request)
    first, *others = refused
    raise OverrideError(
        subject=f"{request.worker}: override_transformer_config.{first.subject}",
        expected=first.expected,
        found=first.found,
        fix="; and ".join([first.fix, *map(str, others)]),
        override=OVERRIDE,
    )


def problems(request: Request, contract: Contract) -> Iterator[Problem]:
    """Return what is wrong with a request, certainly or perhaps: keys, then types, then combinations.

    A value that is yet to be computed is not judged, and neither is a combination that depends on one.
    """
    found = _problems(request, contract)
    if request.engine is Engine.MINDSPEED_LLM:
        yield from _stray(request.section)
        # MindSpeed-LLM cannot be run on virtual NPUs, so nothing of this was shown with it.
        found = (replace(problem, certain=False) for problem in found)
    for problem in found:
        yield replace(problem, certain=problem.certain and (request.forward or not problem.forward))


def _problems(request: Request, contract: Contract) -> Iterator[Problem]:
    for key, value in request.overrides.items():
        if not contract.knows(key):
            if request.engine is Engine.MEGATRON:
                yield _unknown(key, value, contract, request)
        elif not isinstance(value, Unexpanded):
            yield from _mistyped(key, value, contract)
    # A reference's worker gives Megatron the actor's sizes. Among its own, 796871d7 has the text None by default.
    read = request.worker.rpartition(".")[2] != "ref"
    for key, value in request.section.items():
        if key.endswith("_size") and isinstance(value, str) and (read or value != "None"):
            subject = f"({request.engine.value}.{key}={value})"
            yield Problem(subject, "a whole number", repr(value), "write it as a number", certain=read)
    settings, section = Known(effective(request)), Known(request.section)
    for rule in rules(contract):
        with contextlib.suppress(UnknownValueError):
            yield from rule(settings, section, contract)


def _stray(section: Mapping[str, object]) -> Iterator[Problem]:
    """Groups of overrides that MindSpeed-LLM's engine does not read."""
    fix = "write mindspeed.mcore_kwargs in its place"
    if "llm_kwargs" in section:
        yield Problem(
            f"(mindspeed.llm_kwargs.{section['llm_kwargs']})",
            "mcore_kwargs: upstream's documents name llm_kwargs, and its MindSpeedEngineConfig ends with a TypeError",
            "llm_kwargs",
            fix,
        )
    if "override_transformer_config" in section:
        yield Problem(
            f"(mindspeed.override_transformer_config.{section['override_transformer_config']})",
            "mcore_kwargs: the model is not built from override_transformer_config",
            "override_transformer_config",
            fix,
            certain=False,
        )


def _unknown(key: str, value: object, contract: Contract, request: Request) -> Problem:
    underscored = str(key).lstrip("-").replace("-", "_")
    near = [underscored] if contract.knows(underscored) else difflib.get_close_matches(str(key), contract.keys, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}? Else leave it out" if near else "leave it out"
    return Problem(
        subject=f"{key}={value}",
        expected=f"a key that MindSpeed {contract.revision} or Megatron {contract.megatron} knows",
        found="one that nothing in either reads, so that it would have no effect",
        fix=f"{hint}; `verl-npu mindspeed --list` shows what there is",
        # Megatron-Bridge has configurations of its own, which have more fields than Megatron's.
        certain=request.section.get("vanilla_mbridge", True) is not False,
    )


def _mistyped(key: str, value: object, contract: Contract) -> Iterator[Problem]:
    """repatch takes any value as it is, so most of another type work, or are never looked at."""
    argument = contract.arguments.get(key)
    if argument is not None:
        expected, kinds = _expected(argument, value), {argument.type}
    elif key in contract.fields:
        expected, kinds = _unfit(contract.fields[key], value), _kinds(contract.fields[key])
    else:
        return
    if not expected:
        return
    fix = f"write {key}={_corrected(value)} without quotes" if isinstance(value, str) else f"give {expected}"
    # A text in place of False is true. A text, or a broken number, in place of Megatron's numbers ends in a TypeError.
    reversed_ = isinstance(value, str) and "bool" in kinds and value.strip("'\"").lower() in _FALSE
    number = key in contract.fields and kinds <= {"int", "float"} and isinstance(value, str | float)
    certain = reversed_ or number
    yield Problem(f"{key}={value!r}", expected, f"{type(value).__name__} {value!r}", fix, certain)


def _expected(argument: Argument, value: object) -> str:
    """Return what MindSpeed's command line takes for the argument if `value` is not that, else an empty text."""
    if value is None and argument.default is None:
        return ""
    if argument.choices and value not in argument.choices:
        return f"one of {', '.join(map(str, argument.choices))}"
    if argument.type == "str" and isinstance(value, list | tuple):
        return ""
    return "" if _is(value, argument.type) else argument.type


def _kinds(annotation: str) -> set[str]:
    return {kind for kind in ("bool", "int", "float", "str", "List", "list") if kind in _words(annotation)}


def _words(annotation: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", annotation.partition("Literal")[0]))


def _unfit(annotation: str, value: object) -> str:
    """Return the annotation of a field of Megatron's if `value` does not fit it, else an empty text."""
    # A null in verl's configuration files stands for Megatron's own default. False is the same to Megatron as null.
    absent = value is None or (value is False and "Optional" in annotation)
    if absent or not _words(annotation) <= _WORDS or "Literal" in annotation:
        return ""
    kinds = _kinds(annotation)
    if kinds & {"List", "list"}:
        return "" if isinstance(value, list | tuple) or _any(value, kinds, annotation) else annotation
    return "" if not kinds or any(_is(value, kind) for kind in kinds) else annotation


def _any(value: object, kinds: set[str], annotation: str) -> bool:
    outside = re.sub(r"[Ll]ist\[[^\]]*\]", "", annotation)
    return any(kind in outside and _is(value, kind) for kind in kinds)


def _is(value: object, kind: str) -> bool:
    if kind not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


def _corrected(value: str) -> str:
    return value.strip("'\"").capitalize() if value.lower().strip("'\"") in ("true", "false") else value.strip("'\"")
