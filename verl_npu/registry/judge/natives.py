"""What upstream means to patch by itself, looked up in the packages that it means to patch: there, or a stale name."""

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
    """One assignment of upstream's own in another package."""

    target: str
    """What it is meant for: `module:qualname`, or with dots alone if the module cannot be found."""
    by: str
    """The module of upstream that does it."""
    step: Step
    state: State
    reason: str
    seen: bool = False
    """Whether it was read back in this process."""

    def as_json(self) -> dict[str, str]:
        """The plain form for commands."""
        return {"target": self.target, "by": self.by, "state": str(self.state), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a block of the patch module ends early."""

    state: State
    reason: str


# If upstream assigns one place in several branches, the one that can be in force counts.
_ORDER = (State.NATIVE, State.FAILED, State.ABSENT)


def patched_packages(modules: Iterable[PatchModule], tree: SourceTree) -> set[str]:
    """Return the top-level packages that upstream patches: those that `tree` has to speak of to look them up."""
    return {
        step.place.partition(".")[0] for module in modules for step in read_patches(module, tree).steps if step.value
    }


def judge_natives(
    modules: Sequence[PatchModule], tree: SourceTree, ours: Collection[str] = frozenset()
) -> list[Native]:
    """Look up what `modules` assign, one entry for each target.

    `ours` are the targets that patches of ours are applied to, as `module:qualname`: what upstream does with them does
    not matter, so they are left out. Raises SourceError for a source that does not parse.
    """
    found: dict[str, Native] = {}
    for module in modules:
        for native in natives_of(module, tree):
            known = found.get(native.target)
            if known is None or _ORDER.index(native.state) < _ORDER.index(known.state):
                found[native.target] = native
    return [native for target, native in found.items() if target not in ours]


def natives_of(module: PatchModule, tree: SourceTree) -> list[Native]:
    """Look up what one module assigns, in order. What is assigned under a condition that `tree` denies is left out."""
    return list(_Reading(module, tree).natives())


def confirmed(verdicts: Mapping[str, Verdict], natives: Iterable[Native]) -> dict[str, Verdict]:
    """Return the verdicts; patches that are left to upstream are ineffective where what upstream does is."""
    states = {native.step.place: native for native in natives}

    def confirm(verdict: Verdict) -> Verdict:
        lost = [states[place] for place in verdict.claims if place in states]
        bad = next((native for native in lost if native.state is State.FAILED), None)
        if bad is None or verdict.state is not State.NATIVE:
            return verdict
        return replace(verdict, state=bad.state, reason=bad.reason, expected=bad.target, found="a stale name")

    return {patch_id: confirm(verdict) for patch_id, verdict in verdicts.items()}


def stale(module: str, step: Step, missing: str) -> str:
    """Say which name is stale that a step of `module` uses."""
    does = "assigns" if step.value else "imports"
    return f"{missing} is not there, which {module} {does} in line {step.line}"


class _Reading:
    """One patch module, step by step, as if it were executed."""

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
        block = _catching(step, _OF_IMPORTS)
        if "." not in missing:
            failure = _Failure(State.ABSENT, f"{missing} is not installed here")
        elif step.is_module and block.catches & {"ImportError", "ModuleNotFoundError"}:
            # The folder of a model, and not only a module in it: this version does not have the model.
            failure = _Failure(State.ABSENT, f"{missing} is not there, which {self._module.name} expects")
        else:
            failure = _Failure(State.FAILED, stale(self._module.name, step, missing))
        self._fail(step, block, failure)

    def _assigned(self, step: Step, failure: _Failure | None) -> Native | None:
        place = resolve(step.place, self._tree)
        native = Native(place.name, self._module.name, step, State.NATIVE, "")
        only = f"only if {' and '.join(step.conditions)}" if step.conditions else ""
        if only and place.missing and "." in place.missing:
            # The branch is for another version of the package.
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
            # Python raises an AttributeError here, and what comes after is not reached either.
            self._fail(step, _catching(step, _OF_ATTRIBUTES), _Failure(State.FAILED, reason))
        return replace(native, state=State.FAILED, reason=reason)

    def _fail(self, step: Step, block: Block, failure: _Failure) -> None:
        self._failed[block.number] = failure
        if not step.call and block is step.blocks[0]:
            self._import_failed = failure


_EVERYTHING = frozenset({"Exception", "BaseException"})
_OF_IMPORTS = _EVERYTHING | {"ImportError", "ModuleNotFoundError"}
_OF_ATTRIBUTES = _EVERYTHING


def _missing_name(name: str, tree: SourceTree) -> str:
    return resolve(name, tree).missing


def _catching(step: Step, caught: frozenset[str]) -> Block:
    """Return the innermost block that ends when the step fails, and nothing around it."""
    inner = [block for block in step.blocks[1:] if block.catches & caught]
    return inner[-1] if inner else step.blocks[0]
