"""The public names of the registry. Import them from `verl_npu.registry`; all other modules of it may change.

`patch` declares patches, and `state` lists their states. The work has three steps:

- `source` reads upstream's source without importing it. A tree finds the definition of a target (`tree`,
  `definition`). A reader finds out what the code does (`reader`) and where it is called (`sites`). Probes answer the
  questions of a patch from that (`probe`).
- `judge` compares the source with the locks. A lock records the targets at a pin (`lock`). A verdict is the state of a
  patch for a source tree (`verdict`). The features of each owner are judged by the owner's own locks (`bundles`). The
  verdicts of a feature's patches are combined (`policy`), and upstream's own patches are looked up (`natives`).
- `apply` puts patches into modules and takes them out again. It has the life of a registry (`lifecycle`), hooks around
  imports (`hooks`), the places that are written (`slots`), the objects that are written there (`replacement`), the
  state of each patch in this process (`ledger`, `readback`), and the registry that drives all of this (`engine`).
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
