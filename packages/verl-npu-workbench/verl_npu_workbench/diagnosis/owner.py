"""Finds the owner of the code that raised an error: from the frames of the traceback, the names in the text, or the
process that wrote it."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_npu.language import gettext as _

from .event import Event

_CLASSES = Path(__file__).with_name("classes.json")


class Owner(enum.Enum):
    """The owner of the code in a frame of a traceback."""

    YOURS = _("your")
    OURS = _("verl-npu's")
    VERL = _("verl's")
    RECIPE = _("a recipe's")
    ENGINE = _("the engine's")
    TRAINING = _("Megatron's or MindSpeed's")
    SWIFT = _("ms-swift's")
    TRANSFORMERS = _("transformers'")
    TORCH_NPU = _("torch_npu's")
    LIBRARY = _("a library's")


_OWNERS = (
    (Owner.OURS, ("verl_npu", "verl_npu_workbench", "virtual_ascend")),
    (Owner.ENGINE, ("vllm_ascend", "vllm", "vllm_omni", "sglang", "sgl_kernel_npu", "lmdeploy", "mooncake")),
    (Owner.TRAINING, ("megatron", "mindspeed", "mindspeed_llm", "mbridge")),
    (Owner.SWIFT, ("swift",)),
    (Owner.RECIPE, ("recipe",)),
    (Owner.VERL, ("verl",)),
    (Owner.TRANSFORMERS, ("transformers", "peft", "trl", "accelerate", "tokenizers")),
    (Owner.TORCH_NPU, ("torch_npu", "torchair")),
    (Owner.LIBRARY, ("site-packages", "dist-packages", "torch", "ray", "hydra", "tensordict")),
)
_LIBRARIES = (Owner.TRANSFORMERS, Owner.TORCH_NPU, Owner.LIBRARY)
"""Libraries that other code calls. If the traceback also has a frame of the calling code, an error in a library is
attributed to the caller."""
_PYTHON = re.compile(r"/lib/python\d")
_FILE = re.compile(r'File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}), in (?P<function>\S{1,300})')
_NAMED = re.compile(
    r"(?<![\w.])(?P<package>vllm_ascend|vllm_omni|vllm|sglang|verl|recipe|megatron|mindspeed|mbridge|swift|torch_npu)"
    r"(?:/[\w/]{1,300}\.py|\.[a-z_]\w{1,100})"
)
"""The name of a package, in a path or a dotted name."""
_CLASS = re.compile(r"\b[A-Z]\w{4,100}\b")
_PROCESSES = (
    (
        Owner.ENGINE,
        re.compile(r"EngineCore|Vllm|vLLM|APIServer|NPU|Worker(?:_|$| )|Stage-|SGLang|Scheduler|Decode|Pre"),
    ),
    (Owner.VERL, re.compile(r"WorkerDict|TaskRunner|AgentLoop|Reward|FullyAsync|Rollouter|Trainer")),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a traceback, and the owner of its code."""

    owner: Owner
    text: str
    module: str
    """The module's name, derived from its path, for example `verl.workers.fsdp_workers`. Empty if the package is
    unknown."""


def frames(event: Event) -> list[Frame]:
    """For each owner, return the last frame of the owner's code. The frames are in traceback order."""
    last: dict[Owner, Frame] = {}
    for text in event.frames:
        frame = frame_of(text)
        last.pop(frame.owner, None)
        last[frame.owner] = frame
    return [*last.values()]


def frame_of(text: str) -> Frame:
    """Return the frame that a line of a traceback describes."""
    found = _FILE.search(text)
    parts = re.split(r"[/\\]", found["file"].removesuffix(".py")) if found else []
    # The innermost folder decides: a checkout may be in a folder with the package's name.
    for place in range(len(parts) - 2, -1, -1):
        for owner, names in _OWNERS:
            if parts[place] in names:
                module = "" if owner is Owner.LIBRARY else ".".join(parts[place:])
                return Frame(owner, text, module)
    yours = found is not None and not _PYTHON.search(found["file"])
    return Frame(Owner.YOURS if yours else Owner.LIBRARY, text, "")


def owner_of(event: Event) -> Owner | None:
    """Return the owner of the code that raised an error, or None if the log does not show the owner."""
    raised = [frame.owner for frame in frames(event)]
    programs = [owner for owner in raised if owner not in _LIBRARIES]
    if programs:
        return programs[-1]
    return _owner_by_names(event.text) or _owner_by_process(event) or (raised[-1] if raised else None)


def _owner_by_names(text: str) -> Owner | None:
    """Return the owner of the classes or packages that are named in a text, or None if they belong to several
    owners."""
    packages = {owner for found in _NAMED.finditer(text) for owner, names in _OWNERS if found["package"] in names}
    if len(packages) == 1:
        return packages.pop()
    classes = {_owners_of_classes()[name] for name in _CLASS.findall(text) if name in _owners_of_classes()}
    return classes.pop() if len(classes) == 1 else None


def _owner_by_process(event: Event) -> Owner | None:
    if event.engine:
        return Owner.ENGINE
    return next((owner for owner, names in _PROCESSES if names.match(event.process.name)), None)


@cache
def _owners_of_classes() -> dict[str, Owner]:
    """Return the owner of each class name that belongs to a single owner. The data file is written by
    scripts/maintain/class_names.py."""
    rows = json.loads(_CLASSES.read_text(encoding="utf-8"))
    return {name: Owner[owner.upper()] for owner, names in rows.items() for name in names}
