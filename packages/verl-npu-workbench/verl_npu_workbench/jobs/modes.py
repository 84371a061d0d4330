"""The modes of verl's v1 trainer, by its own code: their names, what each asserts, and how weights reach a rollout."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from verl_npu.findings import Finding, error, warning
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree, Target

from .asserted import refused
from .keys import ENGINE
from .settings import Settings

_TRAINERS, _ENGINES = "verl.trainer.ppo.v1", "verl.checkpoint_engine"
_MODE = "trainer.v1.trainer_mode"
_BACKEND = "actor_rollout_ref.rollout.checkpoint_engine.backend"
_NEEDS = {"nixl": "nixl", "mooncake": "mooncake", "kimi_ckpt_engine": "checkpoint_engine", "delta_sharded": "cupy"}
"""What the engines that no NPU has been seen with import beside verl."""


def of_modes(module: str, settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Find what the trainer of the chosen mode would refuse; `module` is the program that starts it."""
    if module != "verl.trainer.main_ppo" or not settings.truth("trainer.use_v1"):
        return
    mode = settings.text(_MODE)
    known = _registered(_TRAINERS, "register_trainer", tree)
    if not known or not mode:
        return
    if mode not in known:
        names = _(", ").join(sorted(known))
        yield _finding(error, mode, _MODE, _("verl has no trainer of that name"), _("choose one of {names}"), names)
        return
    for message in refused(Target(known[mode].module, f"{known[mode].qualname}.__init__"), settings, tree):
        text = " ".join(message.split())
        yield _finding(error, mode, _MODE, _("its trainer refuses the configuration: {names}"), _("correct it"), text)
    if mode == "separate_async":
        yield from _backends(settings, tree)


def _backends(settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    backend = settings.text(_BACKEND)
    known = _registered(_ENGINES, "register", tree)
    if not known or backend == "naive" or settings.text(f"{_BACKEND.rpartition('.')[0]}.custom_backend_module"):
        return
    if backend not in known:
        names = _(", ").join(sorted(known))
        why = _("no checkpoint engine of that name is in verl; the one over HCCL is registered as nccl")
        yield _finding(error, backend, _BACKEND, why, _("set it to nccl; verl has {names}"), names)
    elif backend == "delta_sharded" and settings.text(ENGINE) != "sglang":
        why = _("verl ends with NotImplementedError: this engine is for SGLang alone")
        yield _finding(error, backend, _BACKEND, why, _("set it to nccl, which is HCCL on NPUs"))
    elif backend in _NEEDS:
        why = _("that engine needs {names}, and nobody has shown it on NPUs")
        yield _finding(warning, backend, _BACKEND, why, _("set it to nccl, which is HCCL on NPUs"), _NEEDS[backend])


def _finding(make: Callable[..., Finding], found: str, subject: str, why: str, fix: str, names: str = "") -> Finding:
    return make("trainer-mode", found, subject=subject, why=why.format(names=names), fix=fix.format(names=names))


def _registered(package: str, decorator: str, tree: SourceTree) -> dict[str, Target]:
    """Return the classes in a package that a decorator registers under a name."""
    found: dict[str, Target] = {}
    for module in tree.modules_below(package) if "verl" in tree else ():
        parsed = tree.parse(module)
        for node in parsed.body if parsed is not None else ():
            for each in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                called = each.func if isinstance(each, ast.Call) and each.args else None
                name = getattr(called, "attr", getattr(called, "id", ""))
                given = each.args[0] if isinstance(each, ast.Call) and each.args else None
                if name == decorator and isinstance(given, ast.Constant) and isinstance(node, ast.ClassDef):
                    found[str(given.value)] = Target(module, node.name)
    return found
