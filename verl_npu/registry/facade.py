"""The public names of the registry. Import them from `verl_npu.registry`; its other modules may change.

`patch` declares patches, and `state` lists their states. The work is done in three steps:

- `source` reads upstream's source without importing it. A tree finds the definition behind a target (`tree`,
  `definition`), a reader says what its code does (`reader`) and where it is called from (`sites`), and probes answer
  a patch's questions from that (`probe`).
- `judge` compares the source with the locks. A lock records a target at a pin (`lock`); a verdict is the state of a
  patch for a tree (`verdict`). Each owner's features are judged by its own locks (`bundles`), verdicts are combined
  into features (`policy`), and upstream's own patches are looked up (`natives`).
- `apply` puts patches into modules and takes them out again: the life of a registry (`lifecycle`), hooks around
  imports (`hooks`), the places that are written (`slots`) and the objects written there (`replacement`), the state of
  each patch in this process (`ledger`, `readback`), and the registry that drives all of it (`engine`).
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
