"""The MindSpeed and the Megatron that this interpreter would import, read from their files and not imported."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from ....errors import DeclarationError, SourceError
from .contract import Contract, read_contracts
from .documented import NEWEST
from .extraction import extract
from .reading import keys_read

__all__ = ["Installation", "contracts", "examine", "installation", "nearest", "package_folder", "recorded_as"]


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed of MindSpeed and Megatron; a folder is None if the package is not there."""

    mindspeed: Path | None
    megatron: Path | None
    contract: Contract
    """Extracted from the installed source; the newest recorded one if MindSpeed is not installed."""
    exact: bool
    """Whether the extracted contract equals a recorded one."""
    differences: tuple[str, ...]
    """How the extracted contract differs from the nearest recorded one, one line each."""


@functools.cache
def contracts() -> tuple[Contract, ...]:
    """Return all recorded contracts, sorted by revision."""
    from ...upstreams import locks_folder

    return read_contracts(locks_folder() / "mindspeed")


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


@functools.cache
def installation() -> Installation:
    """Return what this process would import; it is examined once."""
    return examine(package_folder("mindspeed", "features_manager"), package_folder("megatron", "core"))


def examine(mindspeed: Path | None, megatron: Path | None) -> Installation:
    """Examine the packages in these folders. Raises SourceError if MindSpeed cannot be read or Megatron is missing."""
    if mindspeed is None:
        return Installation(None, megatron, recorded_as(NEWEST), False, ())
    if megatron is None:
        raise SourceError(
            subject="megatron.core",
            expected="Megatron-Core beside MindSpeed",
            found="no package megatron.core",
            fix="pip install megatron-core in the version that this MindSpeed is for",
        )
    extracted = extract(mindspeed, megatron, "installed", "installed", deep=False)
    recorded = nearest(extracted)
    differences = tuple(extracted.differences(recorded))
    name = recorded.revision if not differences else f"installed (nearest {recorded.revision})"
    # It takes seconds to search for what the code reads at run time. So that comes from the record, and what nothing
    # in this very source reads is looked for only if no record says it.
    reads = recorded.reads if not differences else tuple(sorted(keys_read(mindspeed, megatron)))
    contract = replace(
        extracted,
        revision=name,
        megatron=recorded.megatron,
        process=recorded.process,
        reads=tuple(sorted({*extracted.reads, *reads})),
    )
    return Installation(
        mindspeed,
        megatron,
        contract,
        not differences,
        differences,
    )


def nearest(contract: Contract) -> Contract:
    """Return the recorded contract with the fewest differences from `contract`."""
    return min(contracts(), key=lambda recorded: sum(1 for _ in contract.differences(recorded)))


def package_folder(package: str, part: str) -> Path | None:
    """Return the folder of `package` that holds `part`: a namespace package such as `megatron` may have several."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # something put the module into sys.modules without a spec
        return None
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((Path(place) for place in places if (Path(place) / part).is_dir()), None)
