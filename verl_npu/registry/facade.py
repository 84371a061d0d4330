"""What others use of the registry; import it from `verl_npu.registry`, whose other modules may change.

`patch` is how patches are declared, and `state` what becomes of them.
From there it goes in three steps:

- `source`: how upstream's source is read, without importing it. A tree gives the definition behind a target (`tree`,
  `definition`), finds names and code in it (`lookup`), reads what upstream patches by itself (`assignments`), and
  answers a patch's questions (`probe`).
- `judge`: what the source says of each patch. A lock records a target at a pin (`lock`); a verdict is the state of a
  patch for a tree (`verdict`), found for each owner's features by the owner's locks (`bundles`); what upstream patches
  by itself is looked up (`natives`); a newer upstream is compared with the nearest pin (`diff`).
- `apply`: how patches get into modules and out again. Hooks around imports (`hooks`), the places that are written
  (`slots`) and what goes there (`replacement`), the state of each patch in this process (`ledger`, `readback`), and
  the registry itself, which drives all of it (`engine`).
"""

from .apply.engine import Registry
from .judge.bundles import Judged, judge_bundles
from .judge.lock import Lock, read_locks
from .judge.policy import Policy
from .judge.verdict import Verdict
from .patch import Action, Bundle, Feature, Patch, Upstream
from .source.named import PatchModule
from .source.probe import (
    AllOf,
    AnyOf,
    Assigns,
    Calls,
    Catches,
    Defines,
    Imported,
    Imports,
    IsActor,
    Keys,
    Never,
    Not,
    Passes,
    Raises,
    Reads,
    Sets,
    Takes,
)
from .source.tree import SourceTree, Target
from .state import Standing, State

__all__ = [
    "Action",
    "AllOf",
    "AnyOf",
    "Assigns",
    "Bundle",
    "Calls",
    "Catches",
    "Defines",
    "Feature",
    "Imported",
    "Imports",
    "IsActor",
    "Judged",
    "Keys",
    "Lock",
    "Never",
    "Not",
    "Passes",
    "Patch",
    "PatchModule",
    "Policy",
    "Raises",
    "Reads",
    "Registry",
    "Sets",
    "SourceTree",
    "Standing",
    "State",
    "Takes",
    "Target",
    "Upstream",
    "Verdict",
    "judge_bundles",
    "read_locks",
]
