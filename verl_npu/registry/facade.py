"""What others use of the registry; import it from `verl_npu.registry`, whose other modules may change.

`patch` is how patches are declared, and `state` what becomes of them.
From there it goes in three steps:

- `source`: how upstream's source is read, without importing it. A tree gives the definition behind a target (`tree`,
  `definition`), one reader says what code does (`reader`), from where a target is reached (`sites`), and the questions
  of a patch are answered by that (`probe`).
- `judge`: what the source says of each patch. A lock records a target at a pin (`lock`); a verdict is the state of a
  patch for a tree (`verdict`), found for each owner's features by the owner's locks (`bundles`); what it means for a
  feature (`policy`); and what upstream patches by itself (`natives`).
- `apply`: how patches get into modules and out again. When they do (`lifecycle`), hooks around imports (`hooks`), the
  places that are written (`slots`) and what goes there (`replacement`), the state of each patch in this process
  (`ledger`, `readback`), and the registry itself, which drives all of it (`engine`).
"""

from .apply.engine import Registry
from .apply.lifecycle import Lifecycle
from .apply.replacement import Conventions
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
    Defines,
    Imported,
    Imports,
    IsRemote,
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
    "Conventions",
    "Defines",
    "Feature",
    "Imported",
    "Imports",
    "IsRemote",
    "Judged",
    "Lifecycle",
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
