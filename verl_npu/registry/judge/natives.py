"""Upstream's own patches of other packages, and whether their targets still exist there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..source.lookup import missing_module, resolve
from ..source.named import PatchModule
from ..source.reader import Block, Step, read_patches
from ..source.tree import SourceTree
from ..state import State
from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class Native:
    """An assignment in upstream's code that patches another package."""

    target: str
    """The intended target as `module:qualname`. If its module cannot be found, it has only dots."""
    by: str
    """The upstream module that makes the assignment."""
    step: Step
    state: State
    reason: str
    seen: bool = False
    """Whether the assignment was found in force in this process."""

    def as_json(self) -> dict[str, str]:
        """Return the JSON representation that the commands print."""
        return {"target": self.target, "by": self.by, "state": str(self.state), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why a block of a patch module ends early."""

    state: State
    reason: str


# If upstream assigns one target in several branches, the one that may be in force counts.
_ORDER = (State.NATIVE, State.FAILED, State.ABSENT)


def patched_packages(modules: Iterable[PatchModule], tree: SourceTree) -> set[str]:
    """Return the top-level packages that are patched by upstream itself. If a tree does not cover one of these
    packages, the targets in that package cannot be found."""
    return {
        step.place.partition(".")[0] for module in modules for step in read_patches(module, tree).steps if step.value
    }


def judge_natives(
    modules: Sequence[PatchModule], tree: SourceTree, ours: Collection[str] = frozenset()
) -> list[Native]:
    """Look up the targets of upstream's own patches, which are the assignments in `modules`. Return one entry for each
    target.

    `ours` contains the targets of verl-npu's applied patches, as `module:qualname`. These targets are omitted: once
    verl-npu's patch replaces a function, upstream's version no longer matters. Raises SourceError if a source cannot
    be parsed.
    """
    found: dict[str, Native] = {}
    for module in modules:
        for native in natives_of(module, tree):
            known = found.get(native.target)
            if known is None or _ORDER.index(native.state) < _ORDER.index(known.state):
                found[native.target] = native
    return [native for target, native in found.items() if target not in ours]


def natives_of(module: PatchModule, tree: SourceTree) -> list[Native]:
    """Look up the assignments of one module, in order, except those whose condition is false in `tree`."""
    return list(_Reading(module, tree).natives())


def confirmed(verdicts: Mapping[str, Verdict], natives: Iterable[Native]) -> dict[str, Verdict]:
    """Return the verdicts. If a patch is native because upstream itself patches the target, but upstream's patch
    failed, the verdict becomes failed."""
    states = {native.step.place: native for native in natives}

    def confirm(verdict: Verdict) -> Verdict:
        lost = [states[place] for place in verdict.claims if place in states]
        bad = next((native for native in lost if native.state is State.FAILED), None)
        if bad is None or verdict.state is not State.NATIVE:
            return verdict
        return replace(verdict, state=bad.state, reason=bad.reason, expected=bad.target, found=bad.reason)

    return {patch_id: confirm(verdict) for patch_id, verdict in verdicts.items()}


def stale(module: str, step: Step, missing: str) -> str:
    """Return the reason why a step of `module` fails: the step uses the name `missing`, which does not exist."""
    does = "assigns" if step.value else "imports"
    return f"no {missing}, which {module} {does} in line {step.line}"


class _Reading:
    """A reader that goes through one patch module step by step, as if the module were executed."""

    def __init__(self, module: PatchModule, tree: SourceTree) -> None:
        self._module = module
        self._tree = tree
        self._failed: dict[int, _Failure] = {}
        self._import_failed: _Failure | None = None

    def natives(self) -> Iterator[Native]:
        for step in read_patches(self._module, self._tree).steps:
            inside = (self._failed[block.number] for block in step.blocks if block.number in self._failed)
            failure = next(inside, self._import_failed if step.call else None)
            if step.value and (native := self._assigned(step, failure)) is not None:
                yield native
            elif not step.value and failure is None and not step.conditions:
                self._import(step)

    def _import(self, step: Step) -> None:
        missing = (missing_module if step.is_module else _missing_name)(step.place, self._tree)
        if not missing:
            return
        block = _catching(step, _CATCH_IMPORTS)
        if "." not in missing:
            failure = _Failure(State.ABSENT, f"{missing} is not installed here")
        elif step.is_module and block.catches & {"ImportError", "ModuleNotFoundError"}:
            # The whole folder of a model is missing, not just a module in it: this version does not have the model.
            failure = _Failure(State.ABSENT, f"no {missing}, which {self._module.name} expects")
        else:
            failure = _Failure(State.FAILED, stale(self._module.name, step, missing))
        self._fail(step, block, failure)

    def _assigned(self, step: Step, failure: _Failure | None) -> Native | None:
        place = resolve(step.place, self._tree)
        native = Native(place.name, self._module.name, step, State.NATIVE, "")
        only = f"only if {' and '.join(step.conditions)}" if step.conditions else ""
        if only and place.missing and "." in place.missing:
            # This branch is for another version of the package.
            return None
        if failure is not None:
            return replace(native, state=failure.state, reason=failure.reason)
        if not place.missing:
            text = f"{self._module.name}, line {step.line}, assigns {step.value}"
            return replace(native, reason="; ".join(filter(None, [text, only])))
        reason = stale(self._module.name, step, place.missing)
        if place.missing == step.place.partition(".")[0]:
            return replace(native, state=State.ABSENT, reason=f"{place.missing} is not installed here")
        if _missing_name(step.place.rpartition(".")[0], self._tree):
            # Python raises an AttributeError here, so the following statements are not reached either.
            self._fail(step, _catching(step, _CATCH_ATTRIBUTES), _Failure(State.FAILED, reason))
        return replace(native, state=State.FAILED, reason=reason)

    def _fail(self, step: Step, block: Block, failure: _Failure) -> None:
        self._failed[block.number] = failure
        if not step.call and block is step.blocks[0]:
            self._import_failed = failure


_CATCH_ALL = frozenset({"Exception", "BaseException"})
_CATCH_IMPORTS = _CATCH_ALL | {"ImportError", "ModuleNotFoundError"}
_CATCH_ATTRIBUTES = _CATCH_ALL


def _missing_name(name: str, tree: SourceTree) -> str:
    return resolve(name, tree).missing


def _catching(step: Step, caught: frozenset[str]) -> Block:
    """Return the innermost block that catches the error of a step. If no block does, return the outermost block."""
    inner = [block for block in step.blocks[1:] if block.catches & caught]
    return inner[-1] if inner else step.blocks[0]
