"""Whether MindSpeed will do with the overrides of a worker what their author meant."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator

from ....errors import OverrideError
from .contract import Argument, Contract
from .request import OVERRIDE, Request, effective
from .rules import Problem, rules
from .unexpanded import Known, Unexpanded, UnknownValueError

__all__ = ["check", "problems"]

_PLAIN: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
}
_WORDS = {"Optional", "Union", "List", "list", "Literal", "None", "bool", "int", "float", "str", "typing"}


def check(request: Request, contract: Contract) -> dict[str, object]:
    """Return `effective(request)`. Raises OverrideError, which names all problems, before anything is changed."""
    refused = list(problems(request, contract))
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
    """Return everything that is wrong with a request: keys, then types, then combinations.

    A value that is yet to be computed is not judged, and neither is a combination that depends on one.
    """
    for key, value in request.overrides.items():
        if not contract.knows(key):
            yield _unknown(key, value, contract)
        elif not isinstance(value, Unexpanded):
            yield from _mistyped(key, value, contract)
    for key, value in request.section.items():
        if key.endswith("_size") and isinstance(value, str):
            yield Problem(f"(megatron.{key}={value})", "a whole number", repr(value), "write it as a number")
    settings, section = Known(effective(request)), Known(request.section)
    for rule in rules(contract):
        with contextlib.suppress(UnknownValueError):
            yield from rule(settings, section, contract)


def _unknown(key: str, value: object, contract: Contract) -> Problem:
    underscored = str(key).lstrip("-").replace("-", "_")
    near = [underscored] if contract.knows(underscored) else difflib.get_close_matches(str(key), contract.keys, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}? Else leave it out" if near else "leave it out"
    return Problem(
        subject=f"{key}={value}",
        expected=f"a key that MindSpeed {contract.revision} or Megatron {contract.megatron} knows",
        found="one that neither knows, and that repatch would ignore",
        fix=f"{hint}; `verl-npu mindspeed --list` shows what there is",
    )


def _mistyped(key: str, value: object, contract: Contract) -> Iterator[Problem]:
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


def _expected(argument: Argument, value: object) -> str:
    """Return what the argument takes if `value` is not that, else an empty text."""
    if value is None and argument.default is None:
        return ""
    if argument.choices and value not in argument.choices:
        return f"one of {', '.join(map(str, argument.choices))}"
    return "" if _is(value, argument.type) else argument.type


def _unfit(annotation: str, value: object) -> str:
    """Return the annotation of a field of Megatron's if `value` does not fit it, else an empty text."""
    # A null in verl's configuration files stands for Megatron's own default.
    words = set(re.findall(r"[A-Za-z_]\w*", annotation.partition("Literal")[0]))
    if value is None or not words <= _WORDS or "Literal" in annotation:
        return ""
    kinds = [kind for kind in ("bool", "int", "float", "str") if kind in words]
    if {"List", "list"} & words:
        return "" if isinstance(value, list | tuple) or _any(value, kinds, annotation) else annotation
    return "" if not kinds or any(_is(value, kind) for kind in kinds) else annotation


def _any(value: object, kinds: list[str], annotation: str) -> bool:
    outside = re.sub(r"[Ll]ist\[[^\]]*\]", "", annotation)
    return any(kind in outside and _is(value, kind) for kind in kinds)


def _is(value: object, kind: str) -> bool:
    if kind not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


def _corrected(value: str) -> str:
    return value.strip("'\"").capitalize() if value.lower().strip("'\"") in ("true", "false") else value.strip("'\"")
