"""The MindSpeed and the Megatron that this interpreter would import; neither is imported to find out."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import SourceError
from .contract import Contract, read_contracts
from .extraction import extract

__all__ = ["Installation", "contracts", "find", "installation", "nearest", "package_folder"]


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed, as far as MindSpeed-backed Megatron needs it; a folder is None where it is not."""

    mindspeed: Path | None
    megatron: Path | None
    contract: Contract
    """Extracted from the source that is there; the nearest recorded one where there is none."""
    exact: bool
    """Whether the extracted contract is a recorded one."""
    differences: tuple[str, ...]
    """What the extracted contract has otherwise than the nearest recorded one."""


@functools.cache
def contracts() -> tuple[Contract, ...]:
    """All recorded contracts."""
    from ..upstreams import locks_folder

    return read_contracts(locks_folder() / "mindspeed")


@functools.cache
def installation() -> Installation:
    """What this process would import; looked at once."""
    return find(package_folder("mindspeed", "features_manager"), package_folder("megatron", "core"))


def find(mindspeed: Path | None, megatron: Path | None) -> Installation:
    """Judge the packages in these folders. Raises SourceError where MindSpeed is there and cannot be read."""
    if mindspeed is None:
        return Installation(None, megatron, contracts()[-1], False, ())
    fields = megatron
    if fields is None:
        raise SourceError(
            subject="megatron.core",
            expected="Megatron-Core beside MindSpeed",
            found="no package megatron.core",
            fix="pip install megatron-core in the version that this MindSpeed is for",
        )
    found = extract(mindspeed, fields, "installed", "installed", deep=False)
    recorded = nearest(found)
    differences = tuple(found.differences(recorded))
    name = recorded.revision if not differences else f"installed (nearest {recorded.revision})"
    # What the code reads while it runs takes seconds to find, so the record has to do.
    return Installation(
        mindspeed,
        megatron,
        replace(found, revision=name, megatron=recorded.megatron, process=recorded.process),
        not differences,
        differences,
    )


def nearest(found: Contract) -> Contract:
    """The recorded contract that has most in common with `found`."""
    return min(contracts(), key=lambda recorded: sum(1 for _ in found.differences(recorded)))


def package_folder(package: str, part: str) -> Path | None:
    """The folder of `package` that holds `part`; Megatron is a namespace that may lie in several."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # put into sys.modules by hand, with no spec
        return None
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((Path(place) for place in places if (Path(place) / part).is_dir()), None)
