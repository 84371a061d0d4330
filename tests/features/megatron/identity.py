"""Try cases in a process of its own with a real MindSpeed: reads JSON lines from stdin, answers each on stdout.

A case is {"overrides": …, "section": …} or {"break": true}. Each is tried in a fork, so that no case affects another.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import types
import warnings
from typing import Any

PACKAGES = ("torch", "megatron", "mindspeed", "transformer_engine", "apex", "amp_C", "flash_attn", "importlib")
DUMMY = "mindspeed.dummy_module.py"


def contents(owner: Any) -> dict[str, Any]:
    """Return the own namespace of a module or class."""
    if isinstance(owner, types.ModuleType):
        return dict(object.__getattribute__(owner, "__dict__"))
    return dict(type.__getattribute__(owner, "__dict__"))


class State:
    """A snapshot of torch, Megatron, MindSpeed and sys.modules, by identity."""

    def __init__(self) -> None:
        from mindspeed.args_utils import get_full_args
        from mindspeed.patch_utils import MindSpeedPatchesManager

        self.modules = dict(sys.modules)
        self.spaces = []
        for name, module in self.modules.items():
            if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
                space = contents(module)
                classes = [v for v in space.values() if isinstance(v, type) and v.__module__ == name]
                self.spaces += [(name, owner, contents(owner)) for owner in (module, *classes)]
        info = MindSpeedPatchesManager.patches_info
        self.order = list(info.items())
        self.patches = [(patch, dict(vars(patch)), list(patch.wrappers)) for patch in info.values()]
        self.arguments = dict(vars(get_full_args()))

    def changes(self, now: State) -> list[str]:
        """Return the names that are bound to another object than before, or are new."""
        changed = [name for name, module in self.modules.items() if now.modules.get(name) is not module]
        new = (now.modules[name] for name in now.modules.keys() - self.modules.keys())
        changed += [m.__name__ for m in new if getattr(m, "__file__", None) == DUMMY]
        for name, owner, before in self.spaces:
            after = contents(owner)
            for key in before.keys() | after.keys():
                # An import binds a submodule on its package.
                imported = key not in before and now.modules.get(f"{name}.{key}") is after.get(key)
                if before.get(key, changed) is not after.get(key, changed) and not imported:
                    changed.append(f"{name}.{key}")
        changed += [] if now.order == self.order else ["patches_info"]
        for patch, before, wrappers in self.patches:
            after = vars(patch)
            same = all(after[key] is value for key, value in before.items() if key != "wrappers")
            changed += [] if same and patch.wrappers == wrappers else [f"patch {patch.orig_func_name}"]
        return changed + ([] if now.arguments == self.arguments else ["arguments"])


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    """Request the case's overrides; return the outcome and the changes."""
    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager
    from mindspeed.megatron_adaptor import repatch

    from verl_npu.features.megatron.repatch import on_behalf_of
    from verl_npu.features.megatron.request import Request

    if case.get("break"):
        MindSpeedFeaturesManager.FEATURES_LIST.append(breaking())
    before = State()
    answer: dict[str, Any] = {"error": "", "text": ""}
    try:
        for overrides in [*case.get("first", []), case.get("overrides", {})]:
            before = State()
            with on_behalf_of(Request(f"worker {overrides}", overrides, case.get("section", {}))):
                repatch({})
    except Exception as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    return {**answer, "changes": sorted(before.changes(State()))[:20], "settings": settings()}


def settings() -> dict[str, Any]:
    from mindspeed.args_utils import get_full_args

    return {key: value for key, value in vars(get_full_args()).items() if isinstance(value, bool | int | str | float)}


def breaking() -> Any:
    """Return a feature that raises after all others have made their final patches; no revision has such a feature."""
    from mindspeed.features_manager.feature import MindSpeedFeature
    from mindspeed.patch_utils import MindSpeedPatchesManager

    class Breaking(MindSpeedFeature):
        def register_patches(self, manager: Any, args: Any) -> None:
            if manager is MindSpeedPatchesManager:
                manager.apply_patches()
                sys.modules["megatron"].__dict__["left_behind"] = True
                raise RuntimeError("the last feature broke")

    return Breaking("breaking", optimization_level=0)


def lost() -> list[str]:
    """Return the patches that a repatch loses, with whatever patches are in force."""
    from mindspeed.megatron_adaptor import repatch
    from mindspeed.patch_utils import MindSpeedPatchesManager

    def of_mindspeed() -> set[str]:
        return {
            name
            for name, patch in MindSpeedPatchesManager.patches_info.items()
            if getattr(patch.final_patch_func, "__module__", "").startswith("mindspeed.") and ".core." in name
        }

    before = of_mindspeed()
    repatch({})
    return sorted(before - of_mindspeed())


def forked(task: Any) -> Any:
    """Run the task in a child, and return its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as stream:
            stream.write(json.dumps(task()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text)


def give_triton_a_driver() -> None:
    """Let kernels be declared: triton asks its driver for that, and no device is here whose driver it could load."""
    try:
        from triton.runtime import driver
    except ImportError:
        return

    class NoDevice:
        def get_current_target(self) -> Any:
            return types.SimpleNamespace(backend="npu", arch="", warp_size=32)

        def get_current_device(self) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            return None

        utils = types.SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 0})

    driver.set_active(NoDevice())
    import triton.language

    # triton-ascend has it in the version that this MindSpeed is for.
    if not hasattr(triton.language, "make_tensor_descriptor"):
        triton.language.make_tensor_descriptor = None


def main() -> None:
    warnings.filterwarnings("ignore")
    import torch

    give_triton_a_driver()
    # In this order, because the guards of MindSpeed wait for verl.
    device = importlib.import_module("verl.utils.device")
    importlib.import_module("mindspeed.megatron_adaptor")
    logging.disable(logging.CRITICAL)
    import verl_npu
    from verl_npu.features.linear_attention import missing_kernels
    from verl_npu.features.megatron.source import installation

    installed = installation()
    head = {
        "revision": installed.contract.revision,
        "exact": installed.exact,
        "arguments": sorted(settings()),
        "applied": sorted(
            name.partition(".")[2]
            for name, patch in verl_npu.status()["features"]["megatron"]["patches"].items()
            if patch["target"].startswith("mindspeed") and patch["state"] == "applied"
        ),
        "flash_attn": importlib.util.find_spec("flash_attn") is not None,
        "cuda": torch.cuda.is_available(),
        "device": [device.get_device_name(), device.is_cuda_available, device.is_npu_available],
        "lost": forked(lost),
        "kernels": missing_kernels(),
    }
    print("ANSWER " + json.dumps(head), flush=True)
    for line in sys.stdin:
        print("ANSWER " + json.dumps(forked(lambda line=line: attempt(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
