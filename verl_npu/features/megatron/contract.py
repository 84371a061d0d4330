"""What a MindSpeed revision understands: its arguments, its features and what these demand, and what documents name.

Contracts are recorded in patches/mindspeed. The features that a user can switch on are in catalogue.json.
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

__all__ = [
    "NEWEST",
    "Argument",
    "Contract",
    "Entry",
    "FeatureFacts",
    "catalogue",
    "contracts",
    "read_contract",
    "recorded_as",
    "revision_for",
    "write_contract",
]

FILE_NAME = "arguments.json"
_SCHEMA = 2


# MindSpeed's documents for verl ask for these, though some revisions look at neither.
_DOCUMENTED = ("swiglu", "use_distributed_optimizer")


@dataclass(frozen=True, slots=True)
class Argument:
    """One key that may be given to `repatch`."""

    type: str
    """bool, int, float, str, list, or any if MindSpeed converts it by a function of its own."""
    default: object
    choices: tuple[object, ...]
    """Empty if any value of the type is accepted."""
    feature: str


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """One of MindSpeed's features. The switch of the same name turns it on; at level 0 it is always on."""

    level: int
    conflicts: tuple[str, ...]
    """Keys that must be off if the feature is on."""
    needs: tuple[str, ...]
    """Keys that must be on if the feature is on."""
    switches: tuple[str, ...]
    """Keys that decide which patches it makes, and so have one value for the whole process."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract of a revision, recorded or extracted from source."""

    revision: str
    megatron: str
    arguments: Mapping[str, Argument]
    features: Mapping[str, FeatureFacts]
    fields: Mapping[str, str]
    """The fields of Megatron's transformer configurations, with their annotations: `repatch` passes these keys on."""
    reads: tuple[str, ...]
    """Other keys that MindSpeed's or Megatron's code reads from arguments or from a model's configuration."""
    process: tuple[str, ...]
    """Keys that MindSpeed's code reads from its process-wide arguments while it runs."""
    validates: bool
    """Whether a model's configuration, when it is made, is given to each feature's validate_args. repatch itself never
    calls these."""

    def knows(self, key: str) -> bool:
        """Whether `key` has an effect, or the documents ask for it."""
        return any(key in known for known in (self.arguments, self.features, self.fields, self.reads, _DOCUMENTED))

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it knows."""
        return tuple(sorted({*self.arguments, *self.features, *self.fields, *self.reads, *_DOCUMENTED}))

    @property
    def switches(self) -> frozenset[str]:
        """The keys that must have one value for all workers in a process."""
        return frozenset({*self.process, *(key for facts in self.features.values() for key in facts.switches)})

    @staticmethod
    def alike(key: str, mine: object, theirs: object) -> bool:
        """Return whether one process can hold both values of a key: MindSpeed does the same with either."""
        # MindSpeed asks only whether it is `block`; Megatron's own recomputation reads each model's configuration.
        return mine == theirs or (key == "recompute_method" and "block" not in (mine, theirs))

    def differences(self, other: Contract) -> Iterator[str]:
        """Return a line for each argument or feature that differs between `self` and `other`."""
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
    """Read what `write_contract` wrote. Raises DeclarationError if the file is damaged or has another schema."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']}, not {_SCHEMA}")
        return Contract(
            revision=content["revision"],
            megatron=content["megatron"],
            arguments={name: Argument(**_with_tuples(plain)) for name, plain in content["arguments"].items()},
            features={name: FeatureFacts(**_with_tuples(plain)) for name, plain in content["features"].items()},
            fields=content["fields"],
            reads=tuple(content["reads"]),
            process=tuple(content["process"]),
            validates=bool(content["validates"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeclarationError(
            subject=str(path),
            expected="the contract of a MindSpeed revision",
            found=f"{type(error).__name__}: {error}",
            fix="install verl-npu again, or record the contract again with scripts/maintain/mindspeed_contract.py",
        ) from error


def _with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a fact as JSON has them, with tuples in place of lists; a default stays as it is."""
    return {
        key: tuple(value) if isinstance(value, list) and key != "default" else value for key, value in plain.items()
    }


@functools.cache
def contracts() -> tuple[Contract, ...]:
    """Return all recorded contracts, sorted by revision."""
    return tuple(read_contract(path) for path in sorted((locks_folder() / "mindspeed").glob(f"*/{FILE_NAME}")))


def recorded_as(revision: str) -> Contract:
    """Return the recorded contract of that name. Raises DeclarationError, which names the recorded ones."""
    known = {contract.revision: contract for contract in contracts()}
    if revision not in known:
        raise DeclarationError(
            subject="the revision of MindSpeed",
            expected=f"one of {', '.join(known)}",
            found=repr(revision),
            fix="take one of these",
        )
    return known[revision]


NEWEST = "core_r0.16.0"
"""The newest recorded revision of MindSpeed."""


# The recorded revision for recipes whose documents name another than the pin's, by the package of their scripts.
_RECIPES: Mapping[str, str] = {"recipe.r1_ascend": "f6688"}  # recipe/r1_ascend/README.md


def revision_for(pin: str, text: str = "") -> str:
    """Return the recorded revision that a pin's documents name; for a recipe in `text`, the one that the recipe's do.

    Raises KeyError for an unknown pin.
    """
    # Workers judge by the installed MindSpeed, and read no pins.
    from ...pins import pins

    recipe = next((revision for package, revision in _RECIPES.items() if package in text), None)
    return recipe or pins()[pin].mindspeed


@dataclass(frozen=True, slots=True)
class Entry:
    """A feature that a verl user can switch on through MindSpeed, and the exact overrides that do it."""

    name: str
    overrides: tuple[str, ...]
    documented: str
    """The first revision whose documents list it; a dash if none does."""
    constraint: str
    keys: tuple[str, ...]
    """The keys that MindSpeed or Megatron must know; empty if it is a setting of verl's."""

    def missing(self, contract: Contract) -> tuple[str, ...]:
        """Return the keys that neither this MindSpeed nor this Megatron knows."""
        return tuple(key for key in self.keys if not contract.knows(key))


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Return the features in the tables of MindSpeed's docs/user-guide/verl.md, each a "Preview" there."""
    rows = json.loads(Path(__file__).with_name("catalogue.json").read_text())
    return tuple(Entry(**_with_tuples(row)) for row in rows)
