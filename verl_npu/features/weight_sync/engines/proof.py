"""A proof that an engine computes with what was sent to it: digests of the parts that belong to this rank, taken as
they come and again from what the engine holds in the end.

The shares are reckoned from the sizes of the layers and not asked of the loader, which is what is judged. Nothing is
kept but the digests: a rank reads its own share of the model twice, and needs no memory for a second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..transport.digest import digest_of
from .difference import Difference, Expected, explain, head_of
from .layout import Layout, Model, layouts_of
from .share import Section
from .verdict import Verdict

if TYPE_CHECKING:
    import torch

__all__ = ["Proof"]

_HELD = "_verl_npu_held"


@dataclass(frozen=True, slots=True)
class _Part:
    """Where one name that may be sent goes."""

    layout: int
    source: int
    place: int


class Proof:
    """The proof of one sync. What an earlier one found in the same model is used to tell stale weights."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._layouts = layouts_of(model)
        self._parts: dict[str, list[_Part]] = defaultdict(list)
        self._expected: dict[tuple[int, int], dict[int, list[Expected]]] = defaultdict(dict)
        self._elsewhere = {name: layout for layout in self._layouts for name in layout.elsewhere}
        self._unplaced: dict[str, int] = {}
        self._digests: set[int] = set()
        self._heads: dict[int, list[str]] = defaultdict(list)
        for number, layout in enumerate(self._layouts):
            for source, names in enumerate(layout.sources):
                for place, name in enumerate(names):
                    self._parts[name].append(_Part(number, source, place))

    def expect(self, name: str, tensor: torch.Tensor) -> None:
        """Take note of one tensor that is given to the engine's loader, under the name of the checkpoint."""
        known = _mapped(self._model, name)
        if known is None:
            return
        if known in self._elsewhere:
            dtype = self._elsewhere[known].read().dtype
            self._heads[digest_of(head_of(tensor).to(dtype))].append(name)
        elif known not in self._parts:
            self._unplaced[name] = digest_of(tensor)
        else:
            for part in self._parts[known]:
                self._take(part, name, tensor)

    def _take(self, part: _Part, name: str, tensor: torch.Tensor) -> None:
        layout = self._layouts[part.layout]
        names = len(layout.sources[part.source])
        sections = layout.sections
        if layout.opaque:
            self._digests.add(digest_of(tensor))
            return
        if names > 1 and sections is not None and len(sections) != names:
            return
        if names == 1:
            taken = _of_whole(layout, name, tensor)
        else:
            taken = [_expected(layout, name, tensor, sections[part.place] if sections else None)]
        self._expected[part.layout, part.source][part.place] = taken
        for each in taken:
            self._digests.add(each.digest)
            self._heads[each.head].append(each.source)

    def conclude(self) -> Verdict:
        """Read what the engine holds now, and compare."""
        earlier: Mapping[str, list[int]] = getattr(self._model, _HELD, {})
        now: dict[str, list[int]] = {}
        differences: list[Difference] = []
        unknown: dict[str, str] = {}
        for number, layout in enumerate(self._layouts):
            if layout.opaque:
                unknown[layout.name] = layout.opaque
                continue
            expected, missing = self._expected_of(number, layout)
            differences += missing
            if missing:
                continue
            held = layout.held()
            rows = _divide(held, expected, layout)
            if rows is not None:
                now[layout.name] = [digest_of(each) for each in rows]
                differences += self._differing(layout, expected, rows, now[layout.name], earlier)
                continue
            said = f"the engine holds the shape {tuple(held.shape)}, and what was sent does not add up to that"
            if layout.sections is None:
                unknown[layout.name] = said
            else:
                differences.append(Difference(layout.name, expected[0].source, said))
        layers = {name.rpartition(".")[0] for name in self._parts}
        for name, digest in self._unplaced.items():
            if digest in self._digests:  # Tied to another.
                continue
            if name.rpartition(".")[0] in layers:
                differences.append(Difference("", name, "it was sent, and the engine's layer has no place for it"))
            else:
                unknown[name] = "it was sent, and the engine has no such layer"
        setattr(self._model, _HELD, now)
        return Verdict(len(now), tuple(differences), unknown)

    def _expected_of(self, number: int, layout: Layout) -> tuple[list[Expected], list[Difference]]:
        """Return what was sent for a tensor of the engine, and what of it was not."""
        came = [self._expected.get((number, source), {}) for source in range(len(layout.sources))]
        source = max(range(len(came)), key=lambda each: len(came[each]))
        names, taken = layout.sources[source], came[source]
        if not taken:
            return [], [Difference(layout.name, "", "nothing that was sent belongs to it")]
        missing = [name for place, name in enumerate(names) if place not in taken]
        return (
            [each for place in sorted(taken) for each in taken[place]],
            [Difference(layout.name, name, "it was not sent") for name in missing],
        )

    def _differing(
        self,
        layout: Layout,
        expected: Sequence[Expected],
        rows: Sequence[torch.Tensor],
        digests: Sequence[int],
        earlier: Mapping[str, Sequence[int]],
    ) -> list[Difference]:
        before: Sequence[int | None] = earlier.get(layout.name, [])
        if len(before) != len(digests):
            before = [None] * len(digests)
        return [
            Difference(layout.name, each.source, explain(each, values, then == digest, self._heads))
            for each, values, digest, then in zip(expected, rows, digests, before, strict=True)
            if digest != each.digest
        ]


def _mapped(model: object, name: str) -> str | None:
    """Return the engine's name for a checkpoint's, or None if the engine leaves it out by its own word."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is not None:
        name = next((mapped for mapped, _ in mapper.apply([(name, None)])), "")
    return name.replace(".base_layer.", ".") or None


def _of_whole(layout: Layout, name: str, tensor: torch.Tensor) -> list[Expected]:
    if layout.unfused is not None and tensor.dim() == 3:
        tensor = layout.unfused(tensor)
    if layout.sections is None or len(layout.sections) == 1:
        return [_expected(layout, name, tensor, layout.sections[0] if layout.sections else None)]
    begin = 0
    found = []
    for number, section in enumerate(layout.sections, start=1):
        rows = tensor.narrow(0, min(begin, len(tensor)), max(0, min(section.rows, len(tensor) - begin)))
        found.append(_expected(layout, f"{name} (part {number})", rows, section))
        begin += section.rows
    return found


def _expected(layout: Layout, name: str, tensor: torch.Tensor, section: Section | None) -> Expected:
    share = section.share if section is not None else None
    own = tensor if share is None else share.of(tensor)
    others = {} if share is None or layout.chosen is not None else share.others(tensor)
    if layout.chosen is not None:
        own = layout.chosen(own)
    dtype = layout.read().dtype
    return Expected(
        source=name,
        shape=tuple(own.shape),
        digest=digest_of(own.to(dtype)),
        head=digest_of(head_of(own).to(dtype)),
        rank=share.index if share is not None else None,
        heads={index: digest_of(head_of(other).to(dtype)) for index, other in others.items()},
    )


def _divide(held: torch.Tensor, expected: list[Expected], layout: Layout) -> list[torch.Tensor] | None:
    """Return the parts of what is held that were sent one by one; None if they do not add up to it."""
    if len(expected) == 1 and tuple(held.shape) == expected[0].shape:
        return [held]
    padded = bool(layout.sections and layout.sections[0].padded)
    rows = sum(each.shape[0] if each.shape else 1 for each in expected)
    same = all(each.shape[1:] == tuple(held.shape[1:]) for each in expected)
    if not held.dim() or not same or rows > held.shape[0] or (rows < held.shape[0] and not padded):
        return None
    found = []
    end = 0
    for each in expected:
        found.append(held.narrow(0, end, each.shape[0]))
        end += each.shape[0]
    return found
