"""Help with an error that no rule matches: the owner of the code, similar rules, and a text to search for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from verl_npu.features import load

from .event import Event
from .owner import Owner, frame_of, owner_of
from .rules import RULES, LogRule

_WHERE_TO_LOOK = {
    Owner.ENGINE: ("vllm-project/vllm-ascend", "vllm-project/vllm"),
    Owner.TRAINING: ("verl-project/verl", "Ascend/MindSpeed"),
    Owner.VERL: ("verl-project/verl",),
    Owner.RECIPE: ("verl-project/verl-recipe", "verl-project/verl"),
    Owner.SWIFT: ("modelscope/ms-swift",),
    Owner.TRANSFORMERS: ("huggingface/transformers", "verl-project/verl"),
    Owner.TORCH_NPU: ("Ascend/pytorch",),
    Owner.LIBRARY: ("Ascend/pytorch", "verl-project/verl"),
}
_EVERYWHERE = ("verl-project/verl", "vllm-project/vllm-ascend", "Ascend/pytorch")
_STATES = re.compile(r"verl-npu: \S{1,60}: [^;\n]{0,400}; (?P<states>[\w ()]{1,60}(?:, [\w ()]{1,60}){1,40})$")
_CHANGES = re.compile(
    r"0x[0-9a-fA-F]+|/[\w./\-]{3,300}|\[PID: ?\d+\]|\(PID:[^)\n]{1,80}\)"
    r"|\d{4}-\d\d-\d\d[-T ]\d\d:\d\d:\d\d[.\d]*|\b\d[\d.]*\b"
)
_SEARCHED = 100
"""The longest text to search for, in characters. The search fields of GitHub and similar sites do not accept longer
ones."""
_WORD = re.compile(r"[A-Za-z_]{3,60}")
_NEAR_ENOUGH = 0.35
"""The smallest weighted share of an error's words that a rule must have in common with it. Below this share, the
similarity is chance."""


@dataclass(frozen=True, slots=True)
class Near:
    """A rule whose patterns are similar to an error but do not match it."""

    rule: LogRule
    nearness: float
    """The weighted share of the error's words that also occur in one of the rule's texts."""


def features(event: Event) -> list[str]:
    """Return the names of verl-npu's features that patch a module in the error's traceback."""
    modules = {frame_of(text).module for text in event.frames} - {""}
    return [feature.name for feature in load() if any(patch.target.module in modules for patch in feature)]


def states(lines: Iterable[str]) -> Mapping[str, str]:
    """Return the features' states from the last line in which verl-npu reports them."""
    found: dict[str, str] = {}
    for line in lines:
        said = _STATES.search(line) if "verl-npu: " in line else None
        if said:
            found = dict(each.strip().split(" ", 1) for each in said["states"].split(",") if " " in each.strip())
    return found


def nearest(event: Event, rules: Sequence[LogRule] = RULES, most: int = 2) -> list[Near]:
    """Return the rules whose patterns are most similar to an error."""
    words = _words(event.error)
    total = sum(_weight(word) for word in words)
    if not total:
        return []
    near = [
        Near(rule, max(sum(_weight(word) for word in words & _words(text)) / total for text in rule.quotes))
        for rule in rules
        if rule.quotes
    ]
    return sorted((each for each in near if each.nearness >= _NEAR_ENOUGH), key=lambda each: -each.nearness)[:most]


def text_to_search(event: Event) -> str:
    """Return the longest part of an error's text that contains no numbers, paths, or addresses. Numbers, paths, and
    addresses differ in each run."""
    parts = [part.strip(" :,.()[]'\"") for part in _CHANGES.split(event.error)]
    return max((part for part in parts if part), key=len, default="")[:_SEARCHED]


def where_to_look(event: Event) -> tuple[str, ...]:
    """Return the repositories whose issues may mention the error."""
    owner = owner_of(event)
    return _WHERE_TO_LOOK.get(owner, _EVERYWHERE) if owner else _EVERYWHERE


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text))


@cache
def _counts() -> Counter[str]:
    return Counter(word for rule in RULES for word in frozenset().union(*(_words(text) for text in rule.quotes)))


def _weight(word: str) -> float:
    """Return the weight of a word. The more rules contain the word, the smaller the weight."""
    return math.log(1 + len(RULES) / (1 + _counts()[word]))
