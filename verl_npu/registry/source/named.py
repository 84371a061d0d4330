"""What the declaration of a patch names in an upstream beside its target: constants, settings, modules that patch, and
the collaborators of its code, which are names, with the parameters that it passes, and keys of the configuration.

    pkg.module:name                             a name of a module, or of a class: `pkg.module:Class.attribute`
    pkg.module:function(config, rank=)          the same, called with one argument by position and one by keyword
    pkg/config/main.yaml: trainer.device        a key of a file of the configuration
    pkg/config/main.yaml: trainer.device = cuda its value as well

What stands at one of several places, by the revision, is written with ` or ` between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import DeclarationError
from .tree import Target


@dataclass(frozen=True, slots=True)
class Value:
    """A constant that reaches an argument."""

    constant: object


@dataclass(frozen=True, slots=True)
class Key:
    """What is looked up under a name, in a mapping or as an attribute: most often a setting of the user's."""

    name: str

    def __str__(self) -> str:
        return f"[{self.name}]"


Origin = Value | Key
Origins = frozenset[Origin | None]
"""Where a value may come from; None is among them if that cannot all be told."""


@dataclass(frozen=True, slots=True)
class PatchModule:
    """A module of an upstream that patches other packages when it is imported, or when its functions are called."""

    name: str
    calls: tuple[str, ...] = ()
    """Its functions that upstream calls to have its patches applied."""
    given: tuple[str, ...] = ()
    """Names of functions and constants that are true in every process that is patched, such as `is_npu_available`."""

    def __str__(self) -> str:
        return self.name


# Collaborators.

_YAML = re.compile(r"(?P<file>\w+(/\w+)*\.yaml): (?P<key>\w+(\.\w+)*)( = (?P<value>\S+))?")
_CALL = re.compile(r"(?P<target>[\w.:]+)(\((?P<passed>[\w=*, ]*)\))?")


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a YAML file, and the value that it must have; any if that is empty."""

    file: str
    key: str
    value: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Name:
    """A name of a module or a class, and what is passed if it is called: parameters, those by keyword with a `=`."""

    target: Target
    passed: tuple[str, ...] | None

    @property
    def positional(self) -> tuple[str, ...]:
        """The parameters that are passed by position."""
        return tuple(word for word in self.passed or () if not word.endswith("="))

    @property
    def keywords(self) -> tuple[str, ...]:
        """The parameters that are passed by keyword."""
        return tuple(word.removesuffix("=") for word in self.passed or () if word.endswith("="))

    @property
    def package(self) -> str:
        return self.target.package


@dataclass(frozen=True, slots=True)
class Collaborator:
    """Something that the code of a patch uses of upstream."""

    text: str
    """As its author wrote it."""
    places: tuple[Name | Setting, ...]
    optional: bool
    """Whether the code of the patch works without it."""

    @classmethod
    def parse(cls, text: str, *, optional: bool = False) -> Collaborator:
        """Read what the head of this module describes. Raises DeclarationError for anything else."""
        return cls(text, tuple(map(_place, text.split(" or "))), optional)

    @property
    def package(self) -> str:
        """The top-level package that has it."""
        return self.places[0].package

    @property
    def decides(self) -> bool:
        """Whether anything that stands there, or that nothing does, could make the patch unfit."""
        exacting = (place.passed is not None if isinstance(place, Name) else place.value for place in self.places)
        return not self.optional or any(exacting)

    def __str__(self) -> str:
        return self.text


def _place(text: str) -> Name | Setting:
    setting, call = _YAML.fullmatch(text), _CALL.fullmatch(text)
    if setting is not None:
        return Setting(setting["file"], setting["key"], setting["value"] or "")
    if call is None:
        raise DeclarationError(
            subject="what a patch uses of upstream",
            expected="package.module:name, package.module:function(parameter, keyword=), or package/file.yaml: key",
            found=f"{text!r}",
            fix="write it in one of these forms",
        )
    passed = call["passed"]
    words = None if passed is None else tuple(word.strip() for word in passed.split(",") if word.strip())
    return Name(Target.parse(call["target"]), words)
