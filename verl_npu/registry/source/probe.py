"""Questions to an upstream's source that decide whether a patch is needed: content, never a version string.

They ask what is done: which call happens, which value reaches an argument, which error comes under which condition. A
question has three answers: yes, no, and `None` if what it is about is gone, so that nothing can be said. No question
is answered by what is not there: `Not(Calls("m:f", "x"))` is `None`, and not yes, when `m:f` has been renamed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING

from .definition import Kind
from .named import Key, Origin, Origins, PatchModule, Value
from .tree import SourceTree, Target

if TYPE_CHECKING:
    from .reader import Call, Facts


def _read(target: str, tree: SourceTree) -> Facts:
    # Imported here, as in the questions below: at a pin the lock has the answers, and no process reads any source.
    from .reader import read_body

    return read_body(target, tree)


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

    @property
    def id(self) -> str:
        """The key of the question in a lock: its kind and its values. How it is worded is free."""
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        return " ".join([type(self).__name__, *(f"{name}={value}" for name, value, usual in values if value != usual)])

    @abstractmethod
    def holds(self, tree: SourceTree) -> bool:
        """Whether the source answers yes; no if the subject is not there."""

    def unread(self, tree: SourceTree) -> str:
        """Say why a no is no answer although the subject is there; empty if it is one."""
        return ""

    def is_closed(self, tree: SourceTree) -> bool:
        """Whether a no is evidence by itself, since there is nothing else that could be meant."""
        return False

    def is_sound(self, tree: SourceTree) -> bool:
        """Whether a yes is evidence by itself."""
        return True

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

    def is_sound(self, tree: SourceTree) -> bool:
        from .reader import is_hollow

        return not is_hollow(self.target, tree)

    def __str__(self) -> str:
        return f"{self.target} is defined"


@dataclass(frozen=True, slots=True)
class IsRemote(Atom):
    """A decorator makes `target`, a class, one that lives in other processes: no class can be derived from it."""

    target: str

    def holds(self, tree: SourceTree) -> bool:
        definition = tree.definition(Target.parse(self.target))
        return definition is not None and definition.kind is Kind.REMOTE

    def __str__(self) -> str:
        return f"{self.target} is remote"


@dataclass(frozen=True, slots=True)
class Calls(Atom):
    """What is done calls `function`: by that name, or by a dotted one that ends with it."""

    target: str
    function: str
    _: KW_ONLY
    given: object = None
    """A constant, or a `Key`, that has to reach one of its positional arguments."""
    when: str = ""
    """What a condition has to read under which it is called."""
    directly: bool = False
    """Whether the target itself has to call it, and not a function that it calls."""

    def holds(self, tree: SourceTree) -> bool:
        return any(self._is(call) for call in _read(self.target, tree).calls)

    def _is(self, call: Call) -> bool:
        from .reader import names_in, origins_of

        return (
            _ends_with(call.function, self.function)
            and (self.given is None or any(_origin(self.given) in origins_of(given) for given in call.given))
            and (not self.when or self.when in names_in(call.conditions))
            and (call.is_direct or not self.directly)
        )

    def __str__(self) -> str:
        given = "" if self.given is None else f" with {_shown(self.given)}"
        when = f", depending on {self.when}" if self.when else ""
        return f"{self.target} calls {self.function}{given}{when}"


@dataclass(frozen=True, slots=True)
class Passes(Atom):
    """A call, or an entry of a dictionary, gives `keyword` a constant, or a setting that is looked up.

    Constants are followed: through local names, those of the module or the class, and defaults of parameters.
    """

    target: str
    keyword: str
    value: object
    """A constant, or a `Key`."""
    _: KW_ONLY
    always: bool = False
    """Whether it has to reach it wherever the keyword is given."""
    to: str = ""
    """The function that is called; empty if that does not matter."""

    def holds(self, tree: SourceTree) -> bool:
        given = self._given(tree)
        wanted = _origin(self.value)
        holds = [wanted in origins for origins in given]
        return bool(holds) and (all(holds) if self.always else any(holds))

    def is_closed(self, tree: SourceTree) -> bool:
        if self.to:
            calls = self._calls(tree)
            return bool(calls) and not any(call.is_open for call in calls) and not self._unknown(tree)
        return bool(self._given(tree)) and not self._unknown(tree)

    def _given(self, tree: SourceTree) -> list[Origins]:
        from .reader import origins_of

        if not self.to:
            return [origins_of(one) for one in _read(self.target, tree).passed.get(self.keyword, ())]
        return [origins_of(call.keywords[self.keyword]) for call in self._calls(tree) if self.keyword in call.keywords]

    def _calls(self, tree: SourceTree) -> list[Call]:
        return [call for call in _read(self.target, tree).calls if _ends_with(call.function, self.to)]

    def _unknown(self, tree: SourceTree) -> bool:
        return any(None in origins for origins in self._given(tree))

    def __str__(self) -> str:
        passes, to = "always passes" if self.always else "passes", f" to {self.to}" if self.to else ""
        return f"{self.target} {passes} {self.keyword}={_shown(self.value)}{to}"


@dataclass(frozen=True, slots=True)
class Takes(Atom):
    """The target has a parameter `parameter`; if `default` is given, one that is that constant if nothing is given."""

    target: str
    parameter: str
    default: object = None

    def holds(self, tree: SourceTree) -> bool:
        takes = self.parameter in _read(self.target, tree).defaults
        return takes and (self.default is None or Value(self.default) in self._default(tree))

    def is_closed(self, tree: SourceTree) -> bool:
        return bool(_read(self.target, tree).parts) and None not in self._default(tree)

    def _default(self, tree: SourceTree) -> Origins:
        from .reader import origins_of

        default = _read(self.target, tree).defaults.get(self.parameter)
        return frozenset() if default is None else origins_of(default)

    def __str__(self) -> str:
        default = "" if self.default is None else f", which is {self.default!r} if nothing is given"
        return f"{self.target} takes {self.parameter}{default}"


@dataclass(frozen=True, slots=True)
class Imports(Atom):
    """What is done imports `name`, a module or something in one: absolute, relative, or under another name."""

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        from .reader import read_imports

        whole = ":" not in self.target
        return self.name in (read_imports(self.target, tree) if whole else _read(self.target, tree).imports)

    def is_closed(self, tree: SourceTree) -> bool:
        from .reader import imports_by_name

        # Of a module all imports are read. What a function calls elsewhere may import anything.
        return ":" not in self.target and not imports_by_name(self.target, tree)

    def __str__(self) -> str:
        return f"{self.target} imports {self.name}"


@dataclass(frozen=True, slots=True)
class Imported(Atom):
    """Some module of a package imports `name`, by its full dotted name."""

    package: str
    name: str

    @property
    def subject(self) -> str:
        return self.package

    def holds(self, tree: SourceTree) -> bool:
        from .reader import read_imports

        # Most sources do not have the names, and parsing all would take seconds.
        modules = tree.modules_with([self.package], self.name.split(".")[-2:])
        return any(self.name in read_imports(module, tree) for module in modules)

    def is_closed(self, tree: SourceTree) -> bool:
        return True

    def __str__(self) -> str:
        return f"a module of {self.package} imports {self.name}"


@dataclass(frozen=True, slots=True)
class Raises(Atom):
    """What is done raises `exception` under a condition that reads `when`."""

    target: str
    exception: str
    when: str

    def holds(self, tree: SourceTree) -> bool:
        from .reader import names_in

        return any(
            self.when in names_in(refusal.conditions)
            and (not self.exception or _ends_with(refusal.exception, self.exception))
            for refusal in _read(self.target, tree).refusals
        )

    def __str__(self) -> str:
        return f"{self.target} raises {self.exception or 'an error'} depending on {self.when}"


@dataclass(frozen=True, slots=True)
class Reads(Atom):
    """What is done reads `name`: a variable, an attribute, or a string that is the thing itself."""

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        return self.name in _read(self.target, tree).reads

    def __str__(self) -> str:
        return f"{self.target} reads {self.name}"


@dataclass(frozen=True, slots=True)
class Sets(Atom):
    """What is done assigns an attribute whose dotted name ends with `place`."""

    target: str
    place: str

    def holds(self, tree: SourceTree) -> bool:
        return any(_ends_with(place, self.place) for place in _read(self.target, tree).sets)

    def __str__(self) -> str:
        return f"{self.target} sets {self.place}"


def _origin(wanted: object) -> Origin:
    return wanted if isinstance(wanted, Key) else Value(wanted)


def _shown(wanted: object) -> str:
    return f"the setting {wanted.name}" if isinstance(wanted, Key) else repr(wanted)


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


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
        from .reader import read_patches

        return any(step.value and step.place == self.place for step in read_patches(self.module, tree).steps)

    def unread(self, tree: SourceTree) -> str:
        from .reader import read_patches

        unread = read_patches(self.module, tree).unread
        return f"what {self.module.name} calls for each of {unread[0]} cannot be read" if unread else ""

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
