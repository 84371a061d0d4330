"""The parts of an upstream that a patch's declaration names in addition to its target.

These are constants, settings, modules that patch other packages, and collaborators. A collaborator is a name that the
patch's code uses, with the parameters that the code passes, or a key of the configuration:

    pkg.module:name                             a name of a module, or of a class: `pkg.module:Class.attribute`
    pkg.module:function(config, rank=)          a call with one positional and one keyword argument
    pkg/config/main.yaml: trainer.device        a key of a configuration file
    pkg/config/main.yaml: trainer.device = cuda a key and its value

Alternatives for different revisions are joined with ` or `.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import DeclarationError
from .tree import Target


@dataclass(frozen=True, slots=True)
class Value:
    """A constant that is passed as an argument."""

    constant: object


@dataclass(frozen=True, slots=True)
class Key:
    """The name of an entry in a mapping, or of an attribute. Most often it is a user's setting."""

    name: str

    def __str__(self) -> str:
        return f"[{self.name}]"


Origin = Value | Key
Origins = frozenset[Origin | None]
"""The constants and settings that a value may come from. None is included if not all of them are known."""


@dataclass(frozen=True, slots=True)
class PatchModule:
    """An upstream module that patches other packages, either on import or when its functions are called."""

    name: str
    calls: tuple[str, ...] = ()
    """The functions that upstream calls in order to apply the patches."""
    given: tuple[str, ...] = ()
    """Functions and constants that are true in every process with patches, such as `is_npu_available`."""

    def __str__(self) -> str:
        return self.name


# Collaborators.

_YAML = re.compile(r"(?P<file>\w+(/\w+)*\.yaml): (?P<key>\w+(\.\w+)*)( = (?P<value>\S+))?")
_CALL = re.compile(r"(?P<target>[\w.:]+)(\((?P<passed>[\w=*, ]*)\))?")


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a YAML file and the key's required value. An empty value matches any value."""

    file: str
    key: str
    value: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a module or class, together with the parameters that the patch passes when it calls this name. The
    names of keyword parameters end with `=`."""

    target: Target
    passed: tuple[str, ...] | None

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of the parameters that are passed by position."""
        return tuple(word for word in self.passed or () if not word.endswith("="))

    @property
    def keywords(self) -> tuple[str, ...]:
        """The names of the parameters that are passed by keyword."""
        return tuple(word.removesuffix("=") for word in self.passed or () if word.endswith("="))

    @property
    def package(self) -> str:
        return self.target.package


@dataclass(frozen=True, slots=True)
class Collaborator:
    """An upstream name or setting that a patch's own code uses."""

    text: str
    """The text that declares the collaborator in the patch."""
    places: tuple[Name | Setting, ...]
    optional: bool
    """Whether the code of the patch also works without it."""

    @classmethod
    def parse(cls, text: str, *, optional: bool = False) -> Collaborator:
        """Parse a text in the format that this module describes. Raises DeclarationError for any other text."""
        return cls(text, tuple(map(_place, text.split(" or "))), optional)

    @property
    def package(self) -> str:
        """The name of the top-level package that contains this collaborator."""
        return self.places[0].package

    @property
    def decides(self) -> bool:
        """Whether the patch depends on this collaborator: the patch may not fit if the collaborator is missing or
        different."""
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
            subject="a collaborator of a patch",
            expected="'package.module:name', 'package.module:function(parameter, keyword=)', or "
            "'package/file.yaml: key'",
            found=f"{text!r}",
            fix="write the collaborator in one of these forms",
        )
    passed = call["passed"]
    words = None if passed is None else tuple(word.strip() for word in passed.split(",") if word.strip())
    return Name(Target.parse(call["target"]), words)
