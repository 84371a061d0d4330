"""A proof that an engine computes with the sent weights: a comparison of the engine's weights with the sent weights.

We digest the part of each weight that belongs to this rank, first when the weight arrives, and again in the engine at
the end of the sync. We compute the parts from the sizes of the layers and not with the engine's loader, because the
proof tests the loader. Only the digests are kept. So a rank reads its part of the model twice, but needs no memory for
a second copy.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .... import environment
from ....errors import WeightSyncError
from ....language import gettext as _
from ....reporting import warn
from ...engine_sleep import changed_since_wake_up, forget_wake_up, unprotected
from ..transport.tensors import digest_of
from .captured import moved, readers, remembered
from .layout import Layout, Section, layouts_of
from .processing import is_copy

if TYPE_CHECKING:
    import torch

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Expected:
    """The part of a sent tensor that this rank must hold after the sync."""

    source: str
    """The name under which the tensor was sent."""
    shape: tuple[int, ...]
    digest: int
    """The digest of the part, cast to the engine's dtype."""
    head: int
    """The digest of the part's first elements."""
    rank: int | None
    """The index of the part. None if the tensor is not sharded."""
    heads: Mapping[int, int]
    """For each other rank, the digest of the first elements of its part."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of the engine, or a part of such a tensor, that differs from the sent tensor."""

    parameter: str
    """The engine's name for the tensor. Empty if the engine has no such parameter."""
    source: str
    """The name under which the tensor was sent. Empty if it was not sent."""
    found: str

    def __str__(self) -> str:
        return f"{self.source or self.parameter}: {self.found}"


def head_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first elements of a tensor, which are enough to identify the tensor and are fast to digest."""
    flat = (
        tensor.reshape(-1) if tensor.is_contiguous() else tensor[: _HEAD // max(1, tensor[0].numel()) + 1].reshape(-1)
    )
    return flat[:_HEAD]


def explain(
    expected: Expected,
    held: torch.Tensor,
    stale: bool,
    sent: Mapping[int, Sequence[str]],
    holder: str = _("the engine"),
) -> str:
    """Describe what the holder of a weight has instead of the expected part.

    `held` is the holder's tensor on the host. `sent` maps the digest of a tensor's first elements to the names under
    which tensors with that digest were sent.
    """
    import torch

    if held.dtype.is_floating_point and bool(held.isnan().all()):
        return _("{holder} holds only NaN, like memory that slept and was not refilled").format(holder=holder)
    if not bool(held.any()):
        return _("{holder} holds only zeros").format(holder=holder)
    if stale:
        return _("{holder} holds the same values as before this sync").format(holder=holder)
    head = digest_of(head_of(held))
    for rank, other in expected.heads.items():
        if head == other:
            said = _("rank {rank} of {holder} holds the share of rank {other}")
            return said.format(rank=expected.rank, holder=holder, other=rank)
    others = [name for name in sent.get(head, ()) if name != expected.source]
    if others:
        return _("{holder} holds the tensor that was sent as {name}").format(holder=holder, name=others[0])
    if held.dim() == 2 and expected.digest in (digest_of(held.T), digest_of(held.reshape(held.T.shape).T)):
        return _("{holder} holds the sent tensor transposed").format(holder=holder)
    for narrow in (torch.bfloat16, torch.float16):
        if held.dtype.itemsize > narrow.itemsize and torch.equal(held.to(narrow).to(held.dtype), held):
            dtype = str(narrow).removeprefix("torch.")
            return _("{holder} holds other values, as if rounded to {dtype}").format(holder=holder, dtype=dtype)
    return _("{holder} holds other values").format(holder=holder)


SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the weight proof for one engine worker."""

    compared: int
    """The number of tensors that were compared."""
    differences: tuple[Difference, ...]
    unknown: Mapping[str, str]
    """For each of the engine's tensors that could not be compared, the reason."""
    moved: tuple[str, ...] = ()
    """Tensors that moved after the engine captured its graphs. Empty if the tensors that the graphs read are known."""
    changed: tuple[str, ...] = ()
    """Tensors that are neither weights nor buffers and that the sync has changed."""
    unprotected: tuple[str, ...] = ()
    """Tensors that are neither weights nor buffers and that a sleep of level 2 would lose, because `engine_sleep` is
    not applied."""

    def __str__(self) -> str:
        held = "the engine holds them bit for bit"
        return f"{held}, except for {len(self.unknown)} not compared" if self.unknown else held

    def require(self) -> None:
        """Raise WeightSyncError if the engine, or a graph that the engine captured, does not compute with the sent
        weights.

        The error names the first differences. If the job has a folder for manifests, all differences are written to a
        file in that folder, and the error contains the path of the file. Tensors that could not be compared only cause
        a warning.
        """
        if self.unknown:
            name, why = next(iter(self.unknown.items()))
            count = len(self.unknown)
            warn(
                f"verl-npu compared {self.compared} tensors of the rollout engine with the sent weights, and could "
                f"not compare {count} {'tensor' if count == 1 else 'tensors'}, the first of which is {name}: {why}"
            )
        if self.moved:
            count = len(self.moved)
            warn(
                f"{count} {'weight' if count == 1 else 'weights'} of the rollout engine moved in memory after its "
                f"first weight sync, but captured graphs still read the old memory: {_shown(self.moved)}. Before you "
                "train, compare an answer of this engine with an answer generated with enforce_eager=True"
            )
        if self.changed:
            warn(
                f"a weight sync changed tensors of the rollout engine that are neither weights nor buffers: "
                f"{_shown(self.changed)}. If the engine does not compute these tensors from the weights, its answers "
                "are incorrect"
            )
        if self.unprotected:
            warn(
                "the feature engine_sleep is not applied, so nothing keeps these tensors of the rollout engine, which "
                f"are neither weights nor buffers: {', '.join(self.unprotected)}. If the engine slept at level 2, its "
                "answers are incorrect: apply engine_sleep, or use sleep level 1"
            )
        if not self.differences:
            return
        more = len(self.differences) - SHOWN
        shown = "; ".join(str(each) for each in self.differences[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise WeightSyncError(
            subject="rollout engine",
            found=f"the engine's weights differ from the sent weights; differences ({len(self.differences)}): {shown}",
            fix=f"do not use this rollout for training; {self._write()}",
        )

    def page(self) -> str:
        """Return a string that lists all differences and all tensors that could not be compared."""
        lines = [f"{self.compared} tensors of the rollout engine were compared with the sent weights.", ""]
        for each in self.differences:
            lines += [f"- {each.source or 'nothing'} -> {each.parameter or 'no parameter'}", f"  {each.found}"]
        if self.unknown:
            lines += ["", "These tensors could not be compared:"]
            lines += [f"- {name}: {why}" for name, why in self.unknown.items()]
        return "\n".join([*lines, ""])

    def _write(self) -> str:
        folder = environment.MANIFEST_DIR.read()
        if not folder:
            return f"set {environment.MANIFEST_DIR.name}=FOLDER to get a file with all differences in that folder"
        path = Path(folder) / f"weights-{socket.gethostname()}-{os.getpid()}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.page(), encoding="utf-8")
        except OSError as error:
            return f"the file with all differences could not be written: {error}"
        return f"all differences are in {path}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


_HELD = "_verl_npu_held"
_LOST = (
    "the tensor is neither a weight nor a buffer; it changed after the engine woke up, and this sync did not write it"
)
_STALE = (
    "the tensor moved in memory after the engine captured its graphs, and the graphs still read the old address "
    "({tasks} times, first as {operand} of {operator})"
)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of an engine's tensor that corresponds to one sent name."""

    layout: int
    source: int
    place: int


class Proof:
    """The comparison of an engine's weights with the weights that one sync sends.

    To detect stale weights, the comparison uses the digests from the previous comparison of the same model.
    """

    def __init__(self, model: torch.nn.Module, captures: bool = False) -> None:
        """Begin the proof, before any weight is loaded. `captures` specifies whether the engine captures graphs."""
        self._model = model
        self._changed = changed_since_wake_up()
        self._captures = captures
        self._layouts = layouts_of(model)
        self._places = remembered(model, self._layouts)
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
        """Record a tensor that is passed to the engine's loader. `name` is the tensor's name in a checkpoint."""
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
                self._record(part, name, tensor)

    def _record(self, part: _Part, name: str, tensor: torch.Tensor) -> None:
        layout = self._layouts[part.layout]
        names = len(layout.sources[part.source])
        sections = layout.sections
        if layout.opaque:
            self._digests.add(digest_of(tensor))
            return
        if names > 1 and sections is not None and len(sections) != names:
            return
        if names == 1:
            taken = _expected_parts(layout, name, tensor)
        else:
            taken = [_expected(layout, name, tensor, sections[part.place] if sections else None)]
        self._expected[part.layout, part.source][part.place] = taken
        for each in taken:
            self._digests.add(each.digest)
            self._heads[each.head].append(each.source)

    def conclude(self) -> Verdict:
        """Read the engine's current weights, and compare them with the recorded ones."""
        # Read the layers again, because code may have replaced them.
        current = {layout.name: layout for layout in layouts_of(self._model)}
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
            if layout.name not in current:
                differences.append(Difference(layout.name, expected[0].source, "the engine no longer has this tensor"))
                continue
            try:
                held = current[layout.name].held()
            except RuntimeError as error:  # its memory sleeps or is gone
                why = f"the engine's tensor cannot be read: {str(error).splitlines()[0]}"
                differences.append(Difference(layout.name, expected[0].source, why))
                continue
            rows = _divide(held, expected, layout)
            if rows is not None:
                now[layout.name] = [digest_of(each) for each in rows]
                differences += self._differing(layout, expected, rows, now[layout.name], earlier)
                continue
            said = f"the sent tensors do not add up to the shape {tuple(held.shape)} of the engine's tensor"
            if layout.sections is None:
                unknown[layout.name] = said
            else:
                differences.append(Difference(layout.name, expected[0].source, said))
        layers = {name.rpartition(".")[0] for name in self._parts}
        for name, digest in self._unplaced.items():
            if digest in self._digests:  # tied to another tensor
                continue
            if name.rpartition(".")[0] in layers:
                differences.append(Difference("", name, "the engine's layer has no such tensor"))
            else:
                unknown[name] = "the engine has no such layer"
        setattr(self._model, _HELD, now)
        elsewhere = moved(self._places, current.values())
        reading = readers(elsewhere)
        for name, reader in (reading or {}).items():
            differences.append(Difference(name, "", _STALE.format(**asdict(reader))))
        unsure = tuple(elsewhere) if reading is None and self._captures else ()
        changed = changed_since_wake_up()
        forget_wake_up()
        lost = [name for name, held in changed.items() if name in self._changed and held.equal(self._changed[name])]
        differences += [Difference(name, "", _LOST) for name in lost]
        written = tuple(name for name in changed if name not in lost and not is_copy(name))
        return Verdict(len(now), tuple(differences), unknown, unsure, written, tuple(unprotected()))

    def _expected_of(self, number: int, layout: Layout) -> tuple[list[Expected], list[Difference]]:
        """Return the expected parts of an engine's tensor, and a difference for each part that was not sent."""
        came = [self._expected.get((number, source), {}) for source in range(len(layout.sources))]
        source = max(range(len(came)), key=lambda each: len(came[each]))
        names, taken = layout.sources[source], came[source]
        if not taken:
            return [], [Difference(layout.name, "", "no sent tensor belongs to this parameter")]
        missing = [name for place, name in enumerate(names) if place not in taken]
        return (
            [each for place in sorted(taken) for each in taken[place]],
            [Difference(layout.name, name, "the trainer did not send this tensor") for name in missing],
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
    """Return the engine's name for a name in a checkpoint, or None if the engine's own mapping drops that name."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is not None:
        # From vLLM 0.25.1 on, the mapper also maps the parts of a stacked weight to the whole, which we do not want.
        if hasattr(mapper, "get_unstacked_mapper"):
            mapper = mapper.get_unstacked_mapper()
        name = next((mapped for mapped, _ in mapper.apply([(name, None)])), "")
    return name.replace(".base_layer.", ".") or None


def _expected_parts(layout: Layout, name: str, tensor: torch.Tensor) -> list[Expected]:
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
    """Divide an engine's tensor into the parts that were sent separately. Return None if the sizes of the parts do not
    match the size of the tensor."""
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
