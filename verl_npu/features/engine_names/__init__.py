"""The names of vLLM and vllm-ascend that verl-npu relies on, and whether a source has them.

They are in `names.json`. Sources are read, and neither package is imported.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ...registry.source.tree import SourceTree, Target

__all__ = ["NAMES", "Form", "Found", "Lack", "Name", "accepts", "find", "lacks"]

NEVER = "never"
"""As `since`: no release has the name, and verl-npu relies on that."""


class Form(Enum):
    """How a source has a name."""

    MODULE = "module"
    """It is a module."""
    DEFINED = "defined"
    SET = "set"
    """It is set on the instances of a class, or in the class."""
    READ = "read"
    """A module reads it."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name, with the releases that must have it."""

    title: str
    places: tuple[str, ...]
    """Where it may be; one place suffices. A module, or `module:qualname`; for `Form.READ` what follows the colon is
    the text that the module reads."""
    uses: tuple[str, ...]
    """Which of our modules rely on it, and by which word: `verl_npu.features.rollout:vllm.__version__`."""
    absent: str
    """What happens if it is not there."""
    form: Form = Form.DEFINED
    arguments: int | None = None
    """The number of positional arguments that it is called with, without `self`; None if it is not called."""
    since: str = "0.7.3"
    """The first recorded release that has it, or `NEVER`."""
    before: str = ""
    """The first recorded release that no longer has it; empty if the newest has it."""

    @property
    def package(self) -> str:
        """`vllm` or `vllm_ascend`."""
        return self.places[0].partition(":")[0].partition(".")[0]

    def expected_in(self, release: str) -> bool:
        """Return whether a release must have it. Raises packaging's InvalidVersion if `release` is not a version."""
        from packaging.version import Version

        version = Version(release)
        if self.since == NEVER:
            return False
        return version >= Version(self.since) and not (self.before and version >= Version(self.before))


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name was found."""

    place: str
    signature: str = ""
    """Its parameters, if it is a function."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A name that a release must have, and that its source does not have as we use it."""

    name: Name
    release: str
    found: str

    def as_json(self) -> dict[str, str]:
        """Return it as `verl-npu check --json` prints it."""
        return {
            "name": self.name.title,
            "package": self.name.package,
            "release": self.release,
            "found": self.found,
            "absent": self.name.absent,
        }


def find(name: Name, tree: SourceTree) -> Found | None:
    """Return the first of the name's places that the source has. Raises SourceError if a module cannot be parsed."""
    place = next((place for place in name.places if _has(name, place, tree)), None)
    return None if place is None else Found(place, _signature(name, place, tree))


def accepts(signature: str, arguments: int) -> bool:
    """Return whether a function with this signature can be called with so many positional arguments beside `self`."""
    (function,) = ast.parse(f"def f{signature.partition(' | ')[0]}: ...").body
    if not isinstance(function, ast.FunctionDef):
        return False
    given = function.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    own = int(positional[:1] in (["self"], ["cls"]))
    most = len(positional) - own
    least = most - len(given.defaults)
    wanted = [default for default in given.kw_defaults if default is None]
    return least <= arguments and (arguments <= most or given.vararg is not None) and not wanted


def lacks(names: Iterable[Name], tree: SourceTree, releases: Mapping[str, str]) -> Iterator[Lack]:
    """Yield the names that installed packages must have by their releases, and do not have as we use them.

    `releases` is the release of each package that is installed.
    """
    for name in names:
        release = releases.get(name.package)
        if release is None or not name.expected_in(release):
            continue
        found = find(name, tree)
        if found is None:
            yield Lack(name, release, f"no {' and no '.join(name.places)}")
        elif name.arguments is not None and not accepts(found.signature, name.arguments):
            given = f"{name.arguments} argument{'' if name.arguments == 1 else 's'}"
            yield Lack(name, release, f"{found.place}{found.signature}, which verl-npu calls with {given}")


def _has(name: Name, place: str, tree: SourceTree) -> bool:
    module, _, qualname = place.partition(":")
    if name.form is Form.MODULE:
        return tree.read(module) is not None
    if name.form is Form.READ:
        return qualname in tree.used_names(module)
    if name.form is Form.SET:
        return _is_set(Target.parse(place), tree)
    return bool(tree.nodes(Target.parse(place)))


def _is_set(target: Target, tree: SourceTree) -> bool:
    if tree.nodes(target):
        return True
    owner = tree.nodes(Target(target.module, target.owner))
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == target.name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for statement in owner
        for node in ast.walk(statement)
    )


def _signature(name: Name, place: str, tree: SourceTree) -> str:
    definition = tree.definition(Target.parse(place)) if name.form is Form.DEFINED else None
    return "" if definition is None else definition.signature


def _name(fields: dict[str, Any]) -> Name:
    places, uses, form = tuple(fields.pop("places")), tuple(fields.pop("uses")), Form(fields.pop("form", "defined"))
    return Name(places=places, uses=uses, form=form, **fields)


_DATA = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))

NAMES: tuple[Name, ...] = tuple(map(_name, _DATA["names"]))
"""All of them. `since` and `before` are releases of the package that has the name."""
