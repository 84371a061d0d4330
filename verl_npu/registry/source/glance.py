"""A glance at the text of a module: whether it binds a name, in a fraction of the time that parsing it takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["glance"]

_MAKES_NAMES = (b"import *", b"__getattr__", b"sys.modules[", b"globals()")


def glance(data: bytes, names: Sequence[str]) -> bool | None:
    """Say whether a module binds `names[0]`, a class in it `names[1]`, and so on; None if parsing has to tell.

    It says yes only of a `def` or `class` at the beginning of a line, and no only of a name that its text nowhere has.
    """
    if names[0].encode() not in data:
        return None if any(mark in data for mark in _MAKES_NAMES) else False
    scope = data
    for depth, name in enumerate(names):
        found = re.search(rb"^%s(?:def|class|async def) %s\b[^\n]*\n" % (b"    " * depth, name.encode()), scope, re.M)
        if found is None:
            return None
        if depth < len(names) - 1 and not found[0].lstrip().startswith(b"class"):
            return None
        # The body ends at the next line that is not further inside.
        end = re.compile(rb"^(?! {%d}|[ \t]*(?:#|\n|\)))" % (4 * depth + 4), re.M).search(scope, found.end())
        scope = scope[found.end() : end.start() if end is not None else len(scope)]
    return True
