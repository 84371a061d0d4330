"""The names in vLLM and vllm-ascend that verl-npu relies on, and a search for them in a source tree.

The names are listed in `names.json`. The search reads source and imports neither package.
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

NEVER = "never"
"""A value of `Name.since`. It means that no release has the name, and that verl-npu relies on its absence."""


class Form(Enum):
    """The form in which a name appears in a source tree, such as a module or a definition."""

    MODULE = "module"
    """The name is a module."""
    DEFINED = "defined"
    SET = "set"
    """The name is set in a class or on its instances."""
    READ = "read"
    """A module reads the name."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the code of vLLM or vllm-ascend defines or reads, and the releases that must contain the name."""

    title: str
    places: tuple[str, ...]
    """The places where the name may be; it must be at one of them. Each place is a module or `module:qualname`. For
    `Form.READ`, the part after the colon is the text that the module reads."""
    uses: tuple[str, ...]
    """The modules of verl-npu that rely on the name, each with the expression that uses the name:
    `verl_npu.features.rollout:vllm.__version__`."""
    absent: str
    """The consequence of a missing name."""
    form: Form = Form.DEFINED
    arguments: int | None = None
    """The number of positional arguments that verl-npu passes, not counting `self`. None if verl-npu does not call the
    name."""
    since: str = "0.7.3"
    """The first recorded release that has the name; or `NEVER`."""
    before: str = ""
    """The first recorded release that no longer has the name. Empty if the newest release still has it."""

    @property
    def package(self) -> str:
        """The package that should contain the name: `vllm` or `vllm_ascend`."""
        return self.places[0].partition(":")[0].partition(".")[0]

    def expected_in(self, release: str) -> bool:
        """Return whether `release` is expected to have this name. Raises packaging's InvalidVersion if `release` is
        not a version."""
        from packaging.version import Version

        version = Version(release)
        if self.since == NEVER:
            return False
        return version >= Version(self.since) and not (self.before and version >= Version(self.before))


@dataclass(frozen=True, slots=True)
class Found:
    """The place where a name was found."""

    place: str
    signature: str = ""
    """The parameters, if the name is a function."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A name that verl-npu needs but that the installed release lacks, or a function in that release that does not
    accept verl-npu's arguments."""

    name: Name
    release: str
    found: str

    def as_json(self) -> dict[str, str]:
        """Return the fields that `verl-npu check --json` prints."""
        return {
            "name": self.name.title,
            "package": self.name.package,
            "release": self.release,
            "found": self.found,
            "absent": self.name.absent,
        }


def find(name: Name, tree: SourceTree) -> Found | None:
    """Look up a name in each of its possible locations. Return the first location that defines the name, or None if no
    location does. Raises SourceError if a module cannot be parsed."""
    place = next((place for place in name.places if _has(name, place, tree)), None)
    return None if place is None else Found(place, _signature(name, place, tree))


def accepts(signature: str, arguments: int) -> bool:
    """Return whether a function with `signature` accepts this number of positional arguments, not counting `self`."""
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
    """Yield the names that an installed release should have but lacks, and the functions that do not accept verl-npu's
    arguments.

    `releases` maps each installed package to its release.
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
"""All recorded names. `since` and `before` are releases of the package that contains the name."""
