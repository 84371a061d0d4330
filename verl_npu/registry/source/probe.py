"""Questions to an upstream's source that decide whether a patch is needed: content, never a version string."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Protocol

from .target import Target
from .tree import SourceTree

__all__ = ["AllOf", "AnyOf", "Defines", "Mentions", "Never", "Not", "Passes", "Probe"]


class Probe(Protocol):
    """A question to a source tree. `str()` of a probe is the question as a sentence."""

    def holds(self, tree: SourceTree) -> bool:
        """Whether the source answers yes."""
        ...

    def modules(self) -> frozenset[str]:
        """The modules whose source is asked."""
        ...


@dataclass(frozen=True, slots=True)
class Defines:
    """The source defines `target`."""

    target: str

    def holds(self, tree: SourceTree) -> bool:
        return bool(tree.nodes(Target.parse(self.target)))

    def modules(self) -> frozenset[str]:
        return frozenset({Target.parse(self.target).module})

    def __str__(self) -> str:
        return f"{self.target} is defined"


@dataclass(frozen=True, slots=True)
class Mentions:
    """The definition of `target` uses `name`: as a name, an attribute, a keyword, an import or a string.

    With a target that is a bare module, the whole module is searched.
    """

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        if ":" in self.target:
            nodes: list[ast.stmt] = tree.nodes(Target.parse(self.target))
        else:
            module = tree.parse(self.target)
            nodes = [] if module is None else module.body
        return any(self.name in _names(node) for statement in nodes for node in ast.walk(statement))

    def modules(self) -> frozenset[str]:
        return frozenset({self.target.partition(":")[0]})

    def __str__(self) -> str:
        return f"{self.target} mentions {self.name}"


@dataclass(frozen=True, slots=True)
class Passes:
    """A call in the definition of `target` passes the constant `value` as `keyword`."""

    target: str
    keyword: str
    value: str

    def holds(self, tree: SourceTree) -> bool:
        return any(
            isinstance(node, ast.keyword)
            and node.arg == self.keyword
            and isinstance(node.value, ast.Constant)
            and node.value.value == self.value
            for statement in tree.nodes(Target.parse(self.target))
            for node in ast.walk(statement)
        )

    def modules(self) -> frozenset[str]:
        return frozenset({Target.parse(self.target).module})

    def __str__(self) -> str:
        return f"{self.target} passes {self.keyword}={self.value!r}"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    probe: Probe

    def holds(self, tree: SourceTree) -> bool:
        return not self.probe.holds(tree)

    def modules(self) -> frozenset[str]:
        return self.probe.modules()

    def __str__(self) -> str:
        return f"not ({self.probe})"


class AnyOf:
    """At least one of the probes holds."""

    __slots__ = ("probes",)

    def __init__(self, *probes: Probe) -> None:
        self.probes = probes

    def holds(self, tree: SourceTree) -> bool:
        return any(probe.holds(tree) for probe in self.probes)

    def modules(self) -> frozenset[str]:
        return frozenset().union(*(probe.modules() for probe in self.probes))

    def __str__(self) -> str:
        return " or ".join(map(str, self.probes))


class AllOf:
    """All of the probes hold."""

    __slots__ = ("probes",)

    def __init__(self, *probes: Probe) -> None:
        self.probes = probes

    def holds(self, tree: SourceTree) -> bool:
        return all(probe.holds(tree) for probe in self.probes)

    def modules(self) -> frozenset[str]:
        return frozenset().union(*(probe.modules() for probe in self.probes))

    def __str__(self) -> str:
        return " and ".join(map(str, self.probes))


@dataclass(frozen=True, slots=True)
class Never:
    """Nothing upstream can retire the patch; `reason` says why."""

    reason: str

    def holds(self, tree: SourceTree) -> bool:
        return False

    def modules(self) -> frozenset[str]:
        return frozenset()

    def __str__(self) -> str:
        return f"never: {self.reason}"


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword | ast.arg):
        return {node.arg} if node.arg else set()
    if isinstance(node, ast.alias):
        return {*node.name.split("."), node.asname or ""} | {node.name}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(node.module or "").split(".")}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()
