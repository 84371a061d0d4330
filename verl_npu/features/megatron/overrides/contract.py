"""The contract of a MindSpeed revision: the arguments that it understands, its features, and what these demand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ....errors import LockError

__all__ = ["FILE_NAME", "Argument", "Contract", "FeatureFacts", "read_contract", "read_contracts", "write_contract"]

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
    """Read what `write_contract` wrote. Raises LockError if the file is damaged or has another schema."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']}, not {_SCHEMA}")
        return Contract(
            revision=content["revision"],
            megatron=content["megatron"],
            arguments={
                name: Argument(plain["type"], plain["default"], tuple(plain["choices"]), plain["feature"])
                for name, plain in content["arguments"].items()
            },
            features={
                name: FeatureFacts(
                    plain["level"], tuple(plain["conflicts"]), tuple(plain["needs"]), tuple(plain["switches"])
                )
                for name, plain in content["features"].items()
            },
            fields=content["fields"],
            reads=tuple(content["reads"]),
            process=tuple(content["process"]),
            validates=bool(content["validates"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockError(
            subject=str(path),
            expected="the contract of a MindSpeed revision",
            found=f"{type(error).__name__}: {error}",
            fix="install verl-npu again, or record the contract again with scripts/maintain/mindspeed_contract.py",
        ) from error


def read_contracts(folder: Path) -> tuple[Contract, ...]:
    """Return all recorded contracts below `folder`, sorted by revision."""
    return tuple(read_contract(path) for path in sorted(folder.glob(f"*/{FILE_NAME}")))
