"""Questions about an upstream's source that decide whether a patch is needed. They look at code, never at a version.

They ask what the code does: which function it calls, which value an argument gets, or which error it raises under a
condition. The answer is yes, no, or `None` if the subject of the question no longer exists. A missing subject proves
nothing. For example, if `m:f` has been renamed, the answer to `Not(Calls("m:f", "x"))` is `None`, not yes.
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
    # Imported here, as in the questions below: at a pin, the lock has the answers and no source is read.
    from .reader import read_body

    return read_body(target, tree)


class Probe(ABC):
    """A question about a source tree, composed of single questions, the atoms. `str()` of a probe returns the question
    as a sentence."""

    __slots__ = ()

    @abstractmethod
    def answer(self, ask: Ask) -> bool | None:
        """Return the answer to this probe's question, or None if there is no answer. `ask` answers each atom's
        question."""

    @abstractmethod
    def atoms(self) -> Iterator[Atom]:
        """Yield the atoms (the single questions) of this probe."""


class Atom(Probe):
    """A probe that asks a single question about one subject (a target or a module). All probes are composed of
    atoms."""

    __slots__ = ()
    target: str

    @property
    def subject(self) -> str:
        """The target or the module that the question is about."""
        return self.target

    @property
    def id(self) -> str:
        """The key that identifies this atom in a lock. The key is built from the atom's class and the values of its
        fields, not from the wording of its question."""
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        return " ".join([type(self).__name__, *(f"{name}={value}" for name, value, usual in values if value != usual)])

    @abstractmethod
    def holds(self, tree: SourceTree) -> bool:
        """Return whether the answer to this atom's question is yes. If the subject does not exist, return False."""

    def unread(self, tree: SourceTree) -> str:
        """If the subject exists but the answer "no" is unreliable, return the reason. Otherwise, return an empty
        string."""
        return ""

    def is_closed(self, tree: SourceTree) -> bool:
        """Return whether the answer "no" is conclusive on its own. The answer is conclusive if the code that this atom
        looks for can be written in only one way."""
        return False

    def is_sound(self, tree: SourceTree) -> bool:
        """Return whether the answer "yes" is conclusive on its own."""
        return True

    def answer(self, ask: Ask) -> bool | None:
        return ask(self)

    def atoms(self) -> Iterator[Atom]:
        yield self


Ask = Callable[[Atom], bool | None]


@dataclass(frozen=True, slots=True)
class Defines(Atom):
    """A probe that asks whether the source defines `target`."""

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
    """A probe that asks whether a decorator makes the class `target` remote. No class can be derived from a remote
    class."""

    target: str

    def holds(self, tree: SourceTree) -> bool:
        definition = tree.definition(Target.parse(self.target))
        return definition is not None and definition.kind is Kind.REMOTE

    def __str__(self) -> str:
        return f"{self.target} is remote"


@dataclass(frozen=True, slots=True)
class Calls(Atom):
    """A probe that asks whether the code calls `function`. A call matches if the called name is `function`, or a
    dotted name that ends with `function`."""

    target: str
    function: str
    _: KW_ONLY
    given: object = None
    """A constant or a `Key` that one of the positional arguments must be able to have."""
    when: str = ""
    """A name that a condition of the call must read."""
    directly: bool = False
    """Whether the target itself must make the call. A function that the target calls does not count then."""

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
    """A probe that asks whether a call or a dictionary entry sets `keyword` to the required value. The required value
    is a constant, or a setting that the code looks up.

    To find constants, the probe resolves local names, names that the module or class defines, and parameter defaults.
    """

    target: str
    keyword: str
    value: object
    """A constant or a `Key`."""
    _: KW_ONLY
    always: bool = False
    """Whether the keyword must have the value everywhere it is given."""
    to: str = ""
    """The function that must be called. If it is empty, any function counts."""

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
    """A probe that asks whether the target has a parameter `parameter`. If `default` is given, the parameter must have
    this default."""

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
        default = "" if self.default is None else f", by default {self.default!r}"
        return f"{self.target} takes {self.parameter}{default}"


@dataclass(frozen=True, slots=True)
class Imports(Atom):
    """A probe that asks whether the code imports `name`, which is a module or a name that a module defines. The import
    may be relative or use an alias."""

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        from .reader import read_imports

        whole = ":" not in self.target
        return self.name in (read_imports(self.target, tree) if whole else _read(self.target, tree).imports)

    def is_closed(self, tree: SourceTree) -> bool:
        from .reader import imports_by_name

        # All imports of a module are read, but a function that the target calls elsewhere may import anything.
        return ":" not in self.target and not imports_by_name(self.target, tree)

    def __str__(self) -> str:
        return f"{self.target} imports {self.name}"


@dataclass(frozen=True, slots=True)
class Imported(Atom):
    """A probe that asks whether any module of a package imports `name`, which is a full dotted name."""

    package: str
    name: str

    @property
    def subject(self) -> str:
        return self.package

    def holds(self, tree: SourceTree) -> bool:
        from .reader import read_imports

        # Most sources do not mention the names, and parsing all of them would take seconds.
        modules = tree.modules_with([self.package], self.name.split(".")[-2:])
        return any(self.name in read_imports(module, tree) for module in modules)

    def is_closed(self, tree: SourceTree) -> bool:
        return True

    def __str__(self) -> str:
        return f"a module of {self.package} imports {self.name}"


@dataclass(frozen=True, slots=True)
class Raises(Atom):
    """A probe that asks whether the code raises `exception` under a condition that uses the name in `when`."""

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
    """A probe that asks whether the code reads a variable or an attribute named `name`, or contains a string equal to
    `name`."""

    target: str
    name: str

    def holds(self, tree: SourceTree) -> bool:
        return self.name in _read(self.target, tree).reads

    def __str__(self) -> str:
        return f"{self.target} reads {self.name}"


@dataclass(frozen=True, slots=True)
class Sets(Atom):
    """A probe that asks whether the code assigns an attribute whose dotted name ends with `place`."""

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
    """A probe that reads the source of `module`, an upstream module that patches other packages, and asks whether the
    module assigns `target`.

    Whether the assignment takes effect is checked in the running process. Until then, a patch that is retired by this
    probe is *claimed* by upstream.
    """

    module: PatchModule
    target: str

    @property
    def subject(self) -> str:
        return self.module.name

    @property
    def place(self) -> str:
        """The full dotted name of the target, in the form that the upstream module uses when it assigns the target."""
        return Target.parse(self.target).dotted

    def holds(self, tree: SourceTree) -> bool:
        from .reader import read_patches

        return any(step.value and step.place == self.place for step in read_patches(self.module, tree).steps)

    def unread(self, tree: SourceTree) -> str:
        from .reader import read_patches

        unread = read_patches(self.module, tree).unread
        return f"the calls that {self.module.name} makes for each of {unread[0]} cannot be read" if unread else ""

    def __str__(self) -> str:
        return f"{self.module.name} assigns {self.target}"


@dataclass(frozen=True, slots=True)
class Not(Probe):
    """The negation of a probe."""

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
    """A probe that holds if at least one of its probes holds."""

    __slots__ = ()

    def answer(self, ask: Ask) -> bool | None:
        answers = [probe.answer(ask) for probe in self.probes]
        return True if True in answers else None if None in answers else False

    def __str__(self) -> str:
        return " or ".join(map(str, self.probes))


class AllOf(_Several):
    """A probe that holds if all of its probes hold."""

    __slots__ = ()

    def answer(self, ask: Ask) -> bool | None:
        answers = [probe.answer(ask) for probe in self.probes]
        return False if False in answers else None if None in answers else True

    def __str__(self) -> str:
        return " and ".join(map(str, self.probes))


@dataclass(frozen=True, slots=True)
class Never(Probe):
    """A probe whose answer is always no, because no change in upstream can retire the patch. `reason` gives the
    reason."""

    reason: str

    def answer(self, ask: Ask) -> bool | None:
        return False

    def atoms(self) -> Iterator[Atom]:
        return iter(())

    def __str__(self) -> str:
        return f"never: {self.reason}"
