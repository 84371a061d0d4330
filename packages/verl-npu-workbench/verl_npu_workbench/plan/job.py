"""What one rank of a plan is asked and answers, as JSON: a step's phases, what each cost, and who held the memory."""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from verl_npu.language import gettext as _

_MOST = 1 << 63
"""Beyond all bytes, calls and seconds: what is larger, or no number, nothing here can be computed with."""


SAYS = "verl-npu: "
"""What stands in a rank's log before the name of a phase that begins."""


class Phase(Enum):
    """What a rank of verl's does, in the order of a step."""

    LOAD = "load"
    ROLLOUT = "rollout"
    SERVERS = "servers"
    LOG_PROB = "log-probabilities"
    REFERENCE = "reference"
    VALUES = "values"
    UPDATE_CRITIC = _("update critic")
    UPDATE_ACTOR = _("update actor")
    TRAINING = _("training step")
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    WEIGHT_SYNC = _("weight sync")
    SERVERS_SYNC = _("servers' sync")

    @property
    def trains(self) -> bool:
        """Whether an optimizer takes a step in it: it is given mini batches, and others all of a step."""
        return self in (Phase.UPDATE_CRITIC, Phase.UPDATE_ACTOR, Phase.TRAINING)


class Part(Enum):
    """A part of a job's start, in its order."""

    PROGRAM = _("the trainer's program")
    WORKERS = _("the workers")
    ENGINE = _("the engine's configuration")
    BATCH = _("the first micro batch")


class Holder(Enum):
    """What memory is for, in csrc/ledger.h's order: its own three, those that a rank tells; last what is no tensor."""

    ACTIVATIONS = _("activations and temporary buffers")
    MESSAGES = _("communication buffers")
    GATHERED = _("gathered weights")
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = _("optimizer's state")
    ENGINE = _("rollout engine's weights")
    CACHE = _("key-value cache")
    RESERVE = "reserve"

    @property
    def number(self) -> int:
        """What csrc/ledger.h calls it."""
        return list(Holder).index(self)


TOLD = tuple(Holder)[: Holder.CACHE.number]
"""Those of tensors, which a ledger has."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What an image-text model makes of a picture, and how large that of each prompt is."""

    token: int
    """The token that stands for a part of a picture."""
    width: int
    """Numbers that a patch has."""
    patches: int
    """Patches of each token."""
    positions: int
    """Rows of a position: the text's, and a picture's time, height and width."""
    tokens: int = 0
    """Of each prompt's picture; 0: prompts have none."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """One rank, the trainer's configuration, and the share of a step that it gets."""

    tree: str
    """The source tree of verl."""
    config: Mapping[str, object]
    """The trainer's configuration, with interpolations as they are written."""
    changes: Mapping[str, object]
    """What is set in it for a plan."""
    rank: int
    world: int
    local: int
    """Ranks on a node."""
    sequences: int
    """That this rank trains on: enough for two micro batches."""
    scored: int
    """Whose log-probabilities and values it computes."""
    prompt: int
    response: int
    """Tokens that prompts and answers are padded to."""
    lengths: Sequence[Sequence[int]] = ()
    """Tokens of each prompt and its answer to train on; empty: all have the length that they are padded to."""
    scored_lengths: Sequence[Sequence[int]] = ()
    rollout_weights: int = 0
    """Bytes of the weights that the rollout engine has on this NPU while it is awake; 0 if it has NPUs of its own."""
    buckets: int = 0
    """Bytes of the checkpoint engine's buffers during a sync; 0: the weights take another way."""
    picture: Picture | None = None
    """None if the model takes none."""
    critic: bool = False
    reference: bool = False
    trainer: str = ""
    """The module of a trainer of fine-tuning, which has a loop of its own; empty: verl's workers are run."""
    flops: float = 1.0
    """That an NPU does in a second at best."""
    bandwidth: float = 1.0
    """Bytes that an NPU reads and writes in a second at best."""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> RankJob:
        picture = told["picture"]
        return cls(**{**told, "picture": Picture(**picture) if picture else None})


@dataclass(frozen=True, slots=True)
class StartJob:
    """One rank, and the program that starts its job."""

    rank: RankJob
    module: str
    """The trainer's module, or its file."""
    arguments: Sequence[str]
    """Hydra's options and overrides."""
    overrides: Mapping[str, object]
    """The settings that name the made-up model and data, and the NPUs."""
    rows: int
    """Rows of made-up data."""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> StartJob:
        return cls(**{**told, "rank": RankJob.of_json(told["rank"])})


@dataclass(frozen=True, slots=True)
class Started:
    """How far a job came on one rank, and the error that ended it."""

    passed: Sequence[str] = ()
    """The parts that it passed."""
    missing: Sequence[str] = ()
    """Errors that say nothing of the script, such as a package that is not installed here."""
    part: str = ""
    """The part that it ended in; empty if it passed all."""
    error: str = ""
    """The name of the exception and its message."""
    where: str = ""
    """The file and the line of upstream's code that raised it."""
    code: str = ""
    """That line."""
    host: int = 0
    """Bytes of this machine's memory that it took at most."""

    @classmethod
    def of_json(cls, told: Mapping[str, object]) -> Started:
        """Return what a rank answered. Raises ValueError if it is of another form."""
        found = _read(cls, told)
        if not {*found.passed, found.part} <= {"", *(part.value for part in Part)}:
            raise ValueError(_("a part that is unknown"))
        return found


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What a phase cost a rank. Bytes."""

    phase: str
    before: int
    peak: int
    after: int
    holders: Mapping[str, int]
    """Who held the memory at the peak."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Who holds what is left after it."""
    micro_batches: int = 0
    seconds: float = 0.0
    """That the operators would take an NPU at its best."""
    calls: int = 0
    copied: float = 0.0
    """Bytes between host and NPU."""
    messages: Sequence[tuple[str, int, int, float]] = ()
    """Collectives by name and ranks: calls and bytes."""
    optimizer_seconds: float = 0.0
    optimizer_calls: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Memory at one moment: bytes by holder."""

    phase: str
    holders: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank answers."""

    rank: int
    phases: Sequence[PhaseCost] = ()
    timeline: Sequence[Point] = ()
    groups: int = 0
    """Process groups with other ranks, each of which has communication buffers of its own."""
    host: int = 0
    """Bytes of this machine's memory that the rank took."""
    seconds: float = 0.0
    not_shown: Sequence[str] = ()
    error: str = ""
    failed_in: str = ""

    @classmethod
    def of_json(cls, told: Mapping[str, object]) -> Outcome:
        """Return what a rank answered, which runs a stranger's code. Raises ValueError if it is no outcome."""
        outcome = _read(cls, told)
        if not (outcome.phases or outcome.error):
            raise ValueError(_("no phases"))
        return outcome


_Kind = TypeVar("_Kind")
_NAMES = {"phase": tuple(each.value for each in Phase), "holders": tuple(each.value for each in Holder)}
_NAMES |= {"kept": _NAMES["holders"], "failed_in": ("", *_NAMES["phase"])}


def _read(kind: type[_Kind], told: object) -> _Kind:
    """Make a dataclass of JSON, of the types that its fields have. Raises ValueError."""
    if not isinstance(told, Mapping):
        raise ValueError(_("{kind}: no object").format(kind=kind.__name__))
    hints = get_type_hints(kind)
    if unknown := sorted(set(told) - set(hints)):
        raise ValueError(_("{kind}: {unknown} is unknown").format(kind=kind.__name__, unknown=unknown[0][:40]))
    values = {}
    for name, value in told.items():
        values[name] = _value(hints[name], value, f"{kind.__name__}.{name}")
        of_these = _NAMES.get(name, ())
        if of_these and not set(value if isinstance(value, Mapping) else (value,)) <= set(of_these):
            raise ValueError(_("{kind}.{name}: a name that is unknown").format(kind=kind.__name__, name=name))
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _value(hint: Any, value: object, where: str) -> object:
    container, inside = get_origin(hint), get_args(hint)
    if container is tuple and isinstance(value, list) and len(value) == len(inside):
        return tuple(_value(each, part, where) for each, part in zip(inside, value, strict=True))
    if container is collections.abc.Sequence and isinstance(value, list):
        return [_value(inside[0], each, where) for each in value]
    if container is collections.abc.Mapping and isinstance(value, Mapping):
        return {str(name): _value(inside[1], each, where) for name, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return _read(cast("type[object]", hint), value)
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    if number and (hint is float or (hint is int and isinstance(value, int))):
        return value
    if hint is str and isinstance(value, str):
        return value
    raise ValueError(_("{where}: not what it is to be").format(where=where))
