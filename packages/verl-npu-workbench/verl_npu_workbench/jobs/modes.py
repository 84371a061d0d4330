"""The modes of verl's v1 trainer, by its own code: their names, what each asserts, and their checkpoint engines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

from verl_npu.findings import Finding, error, warning
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree, Target

from .asserted import refused, section
from .keys import ENGINE, MODE
from .settings import Settings

_TRAINERS, _ENGINES = "verl.trainer.ppo.v1", "verl.checkpoint_engine"
_ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
_THERE = frozenset({"verl", "torch", "ray", "zmq"}) | sys.stdlib_module_names
"""Packages that any job of verl has."""


def of_modes(module: str, settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Find what the trainer of the chosen mode would refuse; `module` is the program that starts it."""
    if module != "verl.trainer.main_ppo" or not settings.truth("trainer.use_v1"):
        return
    mode = settings.text(MODE)
    known = trainers(tree)
    if not known or not mode:
        return
    if mode not in known:
        names = _(", ").join(sorted(known))
        fix = _("choose one of {names}").format(names=names)
        yield _finding(error, mode, MODE, _("verl has no trainer of that name"), fix)
        return
    for message in refused(known[mode][-1], [section(settings)], tree):
        why = _("its trainer refuses the configuration: {message}").format(message=" ".join(message.split()))
        yield _finding(error, mode, MODE, why, _("change the settings that it names"))
    if mode == "separate_async":
        yield from _checkpoint_engine(settings, tree)


def trainers(tree: SourceTree) -> dict[str, list[Target]]:
    """Return the classes of verl's v1 trainer by the names of their modes."""
    return _registered(_TRAINERS, "register_trainer", tree)


def _checkpoint_engine(settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Find what is wrong with the engine that brings the weights to a rollout on other NPUs."""
    key = f"{_ENGINE}.backend"
    backend = settings.text(key)
    known = _registered(_ENGINES, "register", tree)
    if not known or backend == "naive" or settings.text(f"{_ENGINE}.custom_backend_module"):
        return
    use_hccl = _("set it to nccl, which is HCCL on NPUs")
    if backend not in known:
        why = _("no checkpoint engine of that name is in verl; the one over HCCL is registered as nccl")
        fix = _("set it to nccl; verl has {names}").format(names=_(", ").join(sorted(known)))
        yield _finding(error, backend, key, why, fix)
        return
    # On NPUs the second of two modules that register a name is the one that can be imported there.
    needs = min((_imported(each.module, tree) - _THERE - {settings.text(ENGINE)} for each in known[backend]), key=len)
    if "cupy" in needs and not settings.text(f"{_ENGINE}.engine_kwargs.{backend}.device"):
        why = _("its module computes with cupy, which is for CUDA and ROCm alone: verl ends as it starts the engine")
        yield _finding(error, backend, key, why, use_hccl)
    elif needs:
        packages = _(", ").join(sorted(needs))
        why = _("verl registers that engine only where {packages} can be imported, and ends elsewhere")
        fix = use_hccl if backend != "nccl" else _("install {packages}").format(packages=packages)
        yield _finding(warning, backend, key, why.format(packages=packages), fix)


def _imported(module: str, tree: SourceTree) -> set[str]:
    """The top-level packages without which a module cannot be imported."""
    parsed = tree.parse(module)
    body = list(parsed.body) if parsed is not None else []
    body += [inner for node in body if isinstance(node, ast.With) for inner in node.body]
    names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


def _finding(make: Callable[..., Finding], found: str, subject: str, why: str, fix: str) -> Finding:
    return make("trainer-mode", found, subject=subject, why=why, fix=fix)


def _registered(package: str, decorator: str, tree: SourceTree) -> dict[str, list[Target]]:
    """Return the classes in a package that a decorator registers under a name."""
    found: dict[str, list[Target]] = {}
    for module in tree.modules_below(package) if "verl" in tree else ():
        parsed = tree.parse(module)
        for node in parsed.body if parsed is not None else ():
            for each in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                match each:
                    case ast.Call(
                        func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_rest]
                    ) if name == decorator and isinstance(node, ast.ClassDef):
                        found.setdefault(text, []).append(Target(module, node.name))
    return found
