"""Questions to an upstream's source that decide whether a patch is needed: content, never a version string.

A question has three answers: yes, no, and `None` if what it is about is gone, so that nothing can be said. No question
is answered by what is not there: `Not(Mentions("m:f", "x"))` is `None`, and not yes, when `m:f` has been renamed.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .assignments import PatchModule, StepKind, read_steps
from .tree import SourceTree, Target


class Probe(ABC):
    """A question to a source tree, made of atoms. `str()` of a probe is the question as a sentence."""

    __slots__ = ()

    @abstractmethod
    def answer(self, ask: Ask) -> bool | None:
        """Return the answer that follows from what `ask` answers to the atoms."""

    @abstractmethod
    def atoms(self) -> Iterator[Atom]:
        """Return the questions that it is made of."""


class Atom(Probe):
    """One question about one thing."""

    __slots__ = ()
    target: str

    @property
    def subject(self) -> str:
        """What is asked about: a target, or a module."""
        return self.target

    @abstractmethod
    def holds(self, tree: SourceTree) -> bool:
        """Whether the source answers yes; no if the subject is not there."""

    def answer(self, ask: Ask) -> bool | None:
        return ask(self)

    def atoms(self) -> Iterator[Atom]:
        yield self


Ask = Callable[[Atom], bool | None]


@dataclass(frozen=True, slots=True)
class Defines(Atom):
    """The source defines `target`."""

    target: str

    def holds(self, tree: SourceTree) -> bool:
        return bool(tree.nodes(Target.parse(self.target)))

    def __str__(self) -> str:
        return f"{self.target} is defined"


@dataclass(frozen=True, slots=True)
class Mentions(Atom):
    """The definition of `target` uses `name`: as a name, an attribute, a keyword, an import or a string.

    If the target's module imports it from another one of its package, the definition is what stands there. With a
    target that is a bare module, the whole module is searched.
    """

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        return self.name in tree.used_names(self.target)

    def __str__(self) -> str:
        return f"{self.target} mentions {self.name}"


@dataclass(frozen=True, slots=True)
class Passes(Atom):
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
            for statement in tree.meaning(Target.parse(self.target))
            for node in ast.walk(statement)
        )

    def __str__(self) -> str:
        return f"{self.target} passes {self.keyword}={self.value!r}"


@dataclass(frozen=True, slots=True)
class Assigns(Atom):
    """A module of upstream, which patches other packages by itself, means to assign `target`.

    Whether it gets there is another question: a patch that is retired by this is *claimed* until it has been seen.
    """

    module: PatchModule
    target: str

    @property
    def subject(self) -> str:
        return self.module.name

    @property
    def place(self) -> str:
        """The target by its full dotted name, as the steps of the module have it."""
        return Target.parse(self.target).dotted

    def holds(self, tree: SourceTree) -> bool:
        steps = read_steps(self.module, tree)
        return any(step.kind is StepKind.ASSIGN and step.place == self.place for step in steps)

    def unread(self, tree: SourceTree) -> str:
        """Return what of the module's source could not be followed, so that a no is no answer; empty if all was."""
        unread = [step for step in read_steps(self.module, tree) if step.kind is StepKind.UNREAD]
        return f"what {self.module.name} calls for each of {unread[0].place} cannot be read" if unread else ""

    def __str__(self) -> str:
        return f"{self.module.name} assigns {self.target}"


@dataclass(frozen=True, slots=True)
class Not(Probe):
    """The opposite."""

    probe: Probe

    def answer(self, ask: Ask) -> bool | None:
        answer = self.probe.answer(ask)
        return None if answer is None else not answer

    def atoms(self) -> Iterator[Atom]:
        return self.probe.atoms()

    def __str__(self) -> str:
        return f"not ({self.probe})"


class _Several(Probe):
    __slots__ = ("probes",)

    def __init__(self, *probes: Probe) -> None:
        self.probes = probes

    def atoms(self) -> Iterator[Atom]:
        return (atom for probe in self.probes for atom in probe.atoms())


class AnyOf(_Several):
    """At least one of the probes holds."""

    __slots__ = ()

    def answer(self, ask: Ask) -> bool | None:
        answers = [probe.answer(ask) for probe in self.probes]
        return True if True in answers else None if None in answers else False

    def __str__(self) -> str:
        return " or ".join(map(str, self.probes))


class AllOf(_Several):
    """All of the probes hold."""

    __slots__ = ()

    def answer(self, ask: Ask) -> bool | None:
        answers = [probe.answer(ask) for probe in self.probes]
        return False if False in answers else None if None in answers else True

    def __str__(self) -> str:
        return " and ".join(map(str, self.probes))


@dataclass(frozen=True, slots=True)
class Never(Probe):
    """Nothing upstream can retire the patch; `reason` says why."""

    reason: str

    def answer(self, ask: Ask) -> bool | None:
        return False

    def atoms(self) -> Iterator[Atom]:
        return iter(())

    def __str__(self) -> str:
        return f"never: {self.reason}"
