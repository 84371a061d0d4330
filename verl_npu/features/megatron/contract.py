"""The contract of a MindSpeed revision: the arguments that it accepts, its features and their requirements, and the
keys in its documentation.

The recorded contracts are in patches/mindspeed. catalogue.json lists the features that a user can enable.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import DeclarationError
from ..upstreams import locks_folder

FILE_NAME = "arguments.json"
_SCHEMA = 2


# MindSpeed's documentation for verl requires these keys, though some revisions read neither.
_DOCUMENTED = ("swiglu", "use_distributed_optimizer")


@dataclass(frozen=True, slots=True)
class Argument:
    """A key that `repatch` accepts."""

    type: str
    """bool, int, float, str, list, or `any`. `any` means that MindSpeed converts the value with its own function."""
    default: object
    choices: tuple[object, ...]
    """The allowed values. Empty if every value of the type is allowed."""
    feature: str


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """A feature of MindSpeed. The override with the feature's name enables it. A feature of level 0 is always
    enabled."""

    level: int
    conflicts: tuple[str, ...]
    """Keys that must be off while the feature is on."""
    needs: tuple[str, ...]
    """Keys that must be on while the feature is on."""
    switches: tuple[str, ...]
    """Keys that decide which patches the feature makes. Each must have the same value in the whole process."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract of a MindSpeed revision: the arguments and features that this revision supports. The contract is
    recorded, or extracted from source."""

    revision: str
    megatron: str
    arguments: Mapping[str, Argument]
    features: Mapping[str, FeatureFacts]
    fields: Mapping[str, str]
    """The fields of Megatron's transformer configurations, each with its annotation. `repatch` passes these keys on to
    them."""
    reads: tuple[str, ...]
    """Other keys that the code of MindSpeed or Megatron reads from arguments or from a model's configuration."""
    process: tuple[str, ...]
    """Keys that MindSpeed's code reads at run time from the arguments of the whole process."""
    validates: bool
    """Whether making a model's configuration calls the features' validate_args. `repatch` itself never calls these
    functions."""
    adaptor: bool = False
    """Whether this MindSpeed needs MegatronAdaptor and TransformerEngineNPU. Their arguments are not recorded, and
    such a MindSpeed was never run on virtual NPUs."""

    def knows(self, key: str) -> bool:
        """Return whether `key` has an effect in this MindSpeed version, or is required by MindSpeed's
        documentation."""
        return any(key in known for known in (self.arguments, self.features, self.fields, self.reads, _DOCUMENTED))

    @property
    def keys(self) -> tuple[str, ...]:
        """All known keys."""
        return tuple(sorted({*self.arguments, *self.features, *self.fields, *self.reads, *_DOCUMENTED}))

    @property
    def switches(self) -> frozenset[str]:
        """The keys that must have the same value for all workers in a process."""
        return frozenset({*self.process, *(key for facts in self.features.values() for key in facts.switches)})

    @staticmethod
    def alike(key: str, mine: object, theirs: object) -> bool:
        """Return whether MindSpeed treats these two values of a key alike. If so, two workers in one process may set
        the key to different values."""
        # MindSpeed only checks for `block`; Megatron's own recomputation reads each model's configuration.
        return mine == theirs or (key == "recompute_method" and "block" not in (mine, theirs))

    def differences(self, other: Contract) -> Iterator[str]:
        """Yield a line for each argument or feature that differs between `self` and `other`."""
        for label, mine, theirs in (
            ("argument", self.arguments, other.arguments),
            ("feature", self.features, other.features),
        ):
            for name in sorted({*mine, *theirs}):
                if name not in theirs:
                    yield f"{label} {name}: only at {self.revision}"
                elif name not in mine:
                    yield f"{label} {name}: only at {other.revision}"
                elif mine[name] != theirs[name]:
                    yield f"{label} {name}: {mine[name]} at {self.revision}, {theirs[name]} at {other.revision}"


def write_contract(contract: Contract, folder: Path) -> Path:
    """Write `contract` as `<folder>/<revision>/arguments.json` and return that path."""
    path = folder / contract.revision / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": _SCHEMA, **asdict(contract)}, indent=1, sort_keys=True) + "\n")
    return path


def read_contract(path: Path) -> Contract:
    """Read a file that `write_contract` wrote. Raises DeclarationError if the file is damaged or has a different
    schema."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"unsupported schema version {content['schema']}; the supported version is {_SCHEMA}")
        return Contract(
            revision=content["revision"],
            megatron=content["megatron"],
            arguments={name: Argument(**_with_tuples(plain)) for name, plain in content["arguments"].items()},
            features={name: FeatureFacts(**_with_tuples(plain)) for name, plain in content["features"].items()},
            fields=content["fields"],
            reads=tuple(content["reads"]),
            process=tuple(content["process"]),
            validates=bool(content["validates"]),
            adaptor=bool(content.get("adaptor", False)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeclarationError(
            subject=str(path),
            expected="a valid contract file of a MindSpeed revision",
            found=f"{type(error).__name__}: {error}",
            fix="reinstall verl-npu, or regenerate the contract with scripts/maintain/mindspeed_contract.py",
        ) from error


def _with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields that were read from JSON, with tuples instead of lists. A default value is left as it is."""
    return {
        key: tuple(value) if isinstance(value, list) and key != "default" else value for key, value in plain.items()
    }


@functools.cache
def contracts() -> tuple[Contract, ...]:
    """Return all recorded contracts, sorted by revision."""
    return tuple(read_contract(path) for path in sorted((locks_folder() / "mindspeed").glob(f"*/{FILE_NAME}")))


def recorded_as(revision: str) -> Contract:
    """Return the recorded contract of a revision. Raises DeclarationError if there is none."""
    known = {contract.revision: contract for contract in contracts()}
    if revision not in known:
        raise DeclarationError(
            subject="the revision of MindSpeed",
            expected=f"one of {', '.join(known)}",
            found=repr(revision),
            fix="use one of these revisions",
        )
    return known[revision]


NEWEST = "core_r0.16.0"
"""The newest recorded revision of MindSpeed that was run on virtual NPUs."""


# Recipes whose documentation names a different revision from the pin's: the package of their scripts -> the revision.
_RECIPES: Mapping[str, str] = {"recipe.r1_ascend": "f6688"}  # recipe/r1_ascend/README.md


def revision_for(pin: str, text: str = "") -> str:
    """Return the recorded revision of MindSpeed that goes with a pin.

    The pin's documentation names this revision. If `text` names a recipe that has its own documentation, that
    documentation is used instead. Raises KeyError for an unknown pin.
    """
    # Imported here, because workers use the installed MindSpeed and read no pins.
    from ...pins import pins

    recipe = next((revision for package, revision in _RECIPES.items() if package in text), None)
    return recipe or pins()[pin].mindspeed


@dataclass(frozen=True, slots=True)
class Entry:
    """A feature that a verl user can enable through MindSpeed, and the exact overrides that enable it."""

    name: str
    overrides: tuple[str, ...]
    documented: str
    """The first revision whose documentation lists the feature. A dash if no revision's documentation lists it."""
    constraint: str
    keys: tuple[str, ...]
    """The keys that MindSpeed or Megatron must support. Empty if a setting of verl enables the feature."""

    def missing(self, contract: Contract) -> tuple[str, ...]:
        """Return the keys of this feature that have no effect in the MindSpeed version that `contract` describes, and
        that MindSpeed's documentation does not require."""
        return tuple(key for key in self.keys if not contract.knows(key))


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Return the features in the tables of MindSpeed's docs/user-guide/verl.md, which calls each of them a
    "Preview"."""
    rows = json.loads(Path(__file__).with_name("catalogue.json").read_text())
    return tuple(Entry(**_with_tuples(row)) for row in rows)
