"""Conversion between a proof's dataclasses and JSON. The JSON is not trusted: the type of every part is checked."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

LONGEST = 2000
"""The maximum number of characters of a text in a proof."""
_MOST = 20_000
"""The maximum number of items of a list in a proof."""
ADDED_LATER = {"added_later": True}
"""The metadata of a field that the files of older versions lack."""


def to_json(value: object) -> Any:
    """Return a value for JSON. A number that is a field is rounded to three digits after the point."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [to_json(each) for each in value]
    if is_dataclass(value):
        given = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: round(each, 3) if isinstance(each, float) else to_json(each) for name, each in given}
    return value


def read(kind: Any, content: object, subject: str, place: str = "") -> Any:
    """Return the value of type `kind` that `to_json` converted to `content`: a text, a number, an enum, a tuple, a
    mapping, a dataclass, or any `object`. The number in `Annotated[…, number]` is the maximum length of a text or a
    tuple.

    Raises:
        CommandError: a part is missing, or has another type. The message names the part.
    """
    limit = 0
    if kind is object:
        return content
    if get_origin(kind) is Annotated:
        kind, limit = get_args(kind)
    if kind is str:
        limit = limit or LONGEST
        if isinstance(content, str) and len(content) <= limit:
            return content
        expected = _("a text of at most {count} characters").format(count=limit)
    elif kind in (int, float):
        largest = sys.float_info.max
        if isinstance(content, int | float) and not isinstance(content, bool) and -largest <= content <= largest:
            return kind(content)
        expected = _("a number")
    elif get_origin(kind) is tuple:
        limit = limit or _MOST
        if isinstance(content, list) and len(content) <= limit:
            part, _rest = get_args(kind)
            return tuple(read(part, each, subject, f"{place}[{number}]") for number, each in enumerate(content))
        expected = _("a list of at most {count} parts").format(count=limit)
    elif get_origin(kind) is Mapping:
        if isinstance(content, dict) and len(content) <= _MOST and all(len(name) <= LONGEST for name in content):
            _name, part = get_args(kind)
            return {name: read(part, each, subject, _inside(place, name)) for name, each in content.items()}
        expected = _("an object with names of at most {count} characters").format(count=LONGEST)
    elif is_dataclass(kind):
        if isinstance(content, dict):
            hints = get_type_hints(kind, include_extras=True)
            names = [each.name for each in fields(kind) if each.name in content or not each.metadata]
            parts = {name: read(hints[name], content.get(name), subject, _inside(place, name)) for name in names}
            return kind(**parts)  # type: ignore[operator] # a class, and no instance
        expected = _("an object")
    else:
        known = {each.value: each for each in kind}
        if isinstance(content, str) and content in known:
            return known[content]
        expected = _("one of {names}").format(names=_(", ").join(known))
    shown = repr(content)
    raise CommandError(
        subject=subject,
        expected=_("{part} to be {expected}").format(part=place or _("the whole"), expected=expected),
        found=_("nothing") if content is None else shown if len(shown) <= 60 else f"{shown[:60]}…",
        fix=_("ask the sender for a new file: this file is damaged or from another version of verl-npu"),
    )


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
