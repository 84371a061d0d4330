"""What others use of the registry; import it from `verl_npu.registry`, whose other modules may change."""

# ruff: noqa: F401
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
