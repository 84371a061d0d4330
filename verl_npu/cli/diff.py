"""Diffs as text: of a target against its lock at a pin, and of a patch against upstream's code."""

from __future__ import annotations

import difflib
import inspect
import textwrap

from ..registry.judge.lock import Record
from ..registry.patch import Action, Patch
from ..registry.source.definition import outline
from ..registry.source.tree import SourceTree, Target

_EFFECT = {
    Action.WRAP: "called instead of the target, which it gets as its first argument",
    Action.ADD: "added, because upstream has nothing of this name",
    Action.SET: "called with upstream's value; its result becomes the value",
    Action.GUARD: "called before the target's module is executed",
}
"""The header lines of a diff for the actions that do not replace upstream's code: they say when the patch's code is
called."""


def drift_diff(target: Target, pin: str, record: Record, tree: SourceTree) -> str:
    """Return a unified diff between a target's `record` in the lock of the pin `pin` and its source in `tree`.

    Because a lock contains only hashes of the statements, the diff shows the new statements, but only the number of
    the removed statements.
    """
    source = tree.lines(target.module)
    found = outline(tree.nodes(target))
    observed = Record.of(target, tree)
    lines = [f"--- {target} at {pin}", f"+++ {target} found"]
    if record.signature != observed.signature:
        lines += [f"-signature {record.signature or 'none'}", f"+signature {observed.signature or 'none'}"]
    if not found:
        return "\n".join([*lines, f"-all {len(record.outline)} statements", "+(missing)", ""])
    matcher = difflib.SequenceMatcher(a=record.outline, b=[line.mark for line in found], autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        where = found[min(b1, len(found) - 1)].first
        lines.append(f"@@ statement {a1 + 1} of {len(record.outline)} at {pin}, line {where} found @@")
        if a2 > a1:
            lines.append(f"-({a2 - a1} statement{'s' if a2 - a1 > 1 else ''} of {pin})")
        lines += [f"+{text}" for line in found[b1:b2] for text in source[line.first - 1 : line.last]]
    return "\n".join([*lines, ""])


def patch_diff(patch: Patch, tree: SourceTree) -> str:
    """Return the change that `patch` makes, as a unified diff without context lines.

    If the patch replaces its target, the diff compares the patch's code with the target's source in `tree`. Patches
    with other actions leave this source unchanged. For these patches, the diff contains only the patch's code, and the
    header of the diff says when verl-npu calls that code.
    """
    ours = _source(patch)
    implementation = f"{patch.implementation.__module__}:{patch.implementation.__qualname__}"
    head = [f"--- {patch.target}", f"+++ {implementation} ({patch.action})"]
    if patch.action is not Action.REPLACE:
        return "\n".join([*head, f"@@ {_EFFECT[patch.action]} @@", *(f"+{line}" for line in ours), ""])
    lines = tree.lines(patch.target.module)
    taken = [line for node in tree.nodes(patch.target) for line in lines[node.lineno - 1 : node.end_lineno]]
    theirs = textwrap.dedent("\n".join(taken)).splitlines()
    # The first two lines of difflib name the files, which are named above.
    return "\n".join([*head, *list(difflib.unified_diff(theirs, ours, n=0, lineterm=""))[2:], ""])


def _source(patch: Patch) -> list[str]:
    lines = textwrap.dedent(inspect.getsource(patch.implementation)).splitlines()
    # `explain` shows the declaration above it, so start at the definition.
    start = next(n for n, line in enumerate(lines) if line.startswith(("def ", "async def ", "class ")))
    return lines[start:]
