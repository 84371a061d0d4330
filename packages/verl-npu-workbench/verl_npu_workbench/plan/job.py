"""The JSON messages between a plan and one of its ranks: the question to the rank, and its answer with the phases of a
step, their cost, and the holders of memory."""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from verl_npu.language import gettext as _

_MOST = 1 << 63
"""An upper limit for bytes, calls, and seconds. Numbers from this one on, and NaN, are rejected."""


SAYS = "verl-npu: "
"""The prefix of a line in a rank's log that announces the next phase."""


class Phase(Enum):
    """The phases of a rank's work, in the order of a step."""

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
        """Whether an optimizer takes steps in this phase. If so, the phase gets mini batches; otherwise, it gets the
        data of a whole step."""
        return self in (Phase.UPDATE_CRITIC, Phase.UPDATE_ACTOR, Phase.TRAINING)


class Part(Enum):
    """The startup steps of a job, in order."""

    PROGRAM = _("the trainer's program")
    DATA = _("the checkpoint to continue from, and the first rows of data")
    WORKERS = _("the workers")
    ENGINE = _("the engine's configuration")
    BATCH = _("the first micro batch")


class Holder(Enum):
    """A purpose that memory is used for. The members follow the order in csrc/ledger.h: first the holders that the
    ledger itself recognizes, then the holders that a rank marks, then the holders without tensors."""

    ACTIVATIONS = _("activations and temporary buffers")
    MESSAGES = _("communication buffers")
    GATHERED = _("gathered weights")
    HOST = _("host memory")
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = _("optimizer's state")
    ENGINE = _("rollout engine's weights")
    CACHE = _("key-value cache")
    RESERVE = "reserve"

    @property
    def number(self) -> int:
        """The number of this memory holder in csrc/ledger.h."""
        return list(Holder).index(self)


TOLD = tuple(Holder)[: Holder.CACHE.number]
"""The holders of tensors, which a ledger counts, on the NPU and on the host."""


_DEEPEST = 3
"""The number of innermost frames that identify the place of an allocation."""
_SKIPPED = (
    *("/torch_npu/", "/virtual_ascend/", "/verl_npu/", "/verl_npu_workbench/"),
    *("/torch/_ops.py", "/torch/autograd/function.py", "/torch/nn/modules/module.py"),
)
"""Files whose frames are left out, because they differ between a plan and a run: a plan has hooks on all modules, and
operators of its own."""


def site_of(frames: Iterable[tuple[str, str]]) -> str:
    """Return the name of a site, the code that allocated memory. The name is the same in a plan and in a run.

    `frames` are the frames, innermost first, each with its file and its function. Those outside of Python's files are
    left out, such as C++ and generated code. Lines are left out, because they move with each release.
    """
    python = (frame for frame in frames if frame[0].endswith(".py"))
    kept = (frame for frame in python if not any(skipped in frame[0] for skipped in _SKIPPED))
    inner = itertools.islice(kept, _DEEPEST)
    return " < ".join(f"{'/'.join(file.split('/')[-3:])}:{function}" for file, function in inner)


@dataclass(frozen=True, slots=True)
class Picture:
    """How an image-text model represents images, and the size of the image in each prompt."""

    token: int
    """The id of the token that stands for a part of an image."""
    width: int
    """Values per patch."""
    patches: int
    """Patches per token."""
    positions: int
    """The number of rows of position ids: one for the text, and one each for an image's time, height, and width."""
    tokens: int = 0
    """The number of tokens of each prompt's image. It is 0 if prompts have no images."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """One rank, the trainer's configuration, and the rank's share of a step."""

    tree: str
    """The source tree of verl."""
    config: Mapping[str, object]
    """The trainer's configuration. Interpolations are unresolved."""
    changes: Mapping[str, object]
    """The settings that the plan changes in the configuration."""
    rank: int
    world: int
    local: int
    """The number of ranks on a node."""
    sequences: int
    """The number of sequences that this rank trains on. It is enough for two micro batches."""
    scored: int
    """The number of sequences whose log-probabilities and values this rank computes."""
    prompt: int
    response: int
    """The number of tokens that prompts and answers together are padded to."""
    lengths: Sequence[Sequence[int]] = ()
    """The number of tokens of each prompt and answer to train on. If this is empty, all sequences have the padded
    length."""
    scored_lengths: Sequence[Sequence[int]] = ()
    rollout_weights: int = 0
    """The bytes of the rollout engine's weights on this NPU while the engine is awake. It is 0 if the engine has
    separate NPUs."""
    buckets: int = 0
    """The bytes of the checkpoint engine's buffers during a weight sync. It is 0 if no checkpoint engine sends the
    weights."""
    picture: Picture | None = None
    """The images in the prompts. None if the model takes no images."""
    critic: bool = False
    reference: bool = False
    trainer: str = ""
    """The module of a fine-tuning trainer, whose own training loop is run. If this is empty, verl's workers are
    run."""
    flops: float = 1.0
    """An NPU's peak operations per second."""
    bandwidth: float = 1.0
    """The peak number of bytes per second that an NPU reads and writes."""
    sites: bool = False
    """Whether to record where the program allocates its blocks."""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> RankJob:
        picture = told["picture"]
        return cls(**{**told, "picture": Picture(**picture) if picture else None})


@dataclass(frozen=True, slots=True)
class StartJob:
    """A request to start a job: one rank, and the program that the rank starts."""

    rank: RankJob
    module: str
    """The trainer's module, or its file."""
    arguments: Sequence[str]
    """Hydra's options and overrides."""
    overrides: Mapping[str, object]
    """The settings that name the generated model and data, and that give the NPUs."""
    rows: int
    """The number of rows of generated data."""
    trains: bool = True
    """False if the program does not build a trainer's workers."""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> StartJob:
        return cls(**{**told, "rank": RankJob.of_json(told["rank"])})


@dataclass(frozen=True, slots=True)
class Started:
    """How far a job got on one rank, and the error that ended it."""

    passed: Sequence[str] = ()
    """The startup steps that succeeded."""
    missing: Sequence[str] = ()
    """Errors that are not caused by the script, for example that a package is not installed on this machine."""
    part: str = ""
    """The startup step that failed. Empty if no step failed."""
    error: str = ""
    """The name of the exception and its message."""
    where: str = ""
    """The file and the line number of upstream's code that raised the error."""
    code: str = ""
    """The source code of that line."""
    host: int = 0
    """The peak number of bytes of this machine's memory that the process used."""

    @classmethod
    def of_json(cls, told: Mapping[str, object]) -> Started:
        """Return the rank's answer from JSON. Raises ValueError if the JSON is malformed."""
        found = _read(cls, told)
        if not {*found.passed, found.part} <= {"", *(part.value for part in Part)}:
            raise ValueError(_("an unknown part"))
        return found


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """The cost of a phase on one rank. Memory is in bytes."""

    phase: str
    peak: int
    after: int
    holders: Mapping[str, int]
    """The bytes at the peak, by holder."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """The bytes that are still allocated after the phase, by holder."""
    micro_batches: int = 0
    seconds: float = 0.0
    """The seconds that the operators would take at an NPU's peak speed."""
    calls: int = 0
    copied: float = 0.0
    """Bytes copied between host and NPU."""
    host: int = 0
    """Bytes of the rank's large tensors on the host, at their peak."""
    host_after: int = 0
    messages: Sequence[tuple[str, int, int, float]] = ()
    """The collectives of the phase. Each has a name, the number of ranks, the number of calls, and the bytes."""
    optimizer_seconds: float = 0.0
    optimizer_calls: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """A memory snapshot: the number of bytes used by each holder, such as weights or activations."""

    phase: str
    holders: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one rank."""

    rank: int
    phases: Sequence[PhaseCost] = ()
    timeline: Sequence[Point] = ()
    groups: int = 0
    """The number of process groups that include other ranks. Each group has separate communication buffers."""
    host: int = 0
    """Bytes of this machine's memory that the rank's process used."""
    seconds: float = 0.0
    not_shown: Sequence[str] = ()
    read: Sequence[str] = ()
    """The files of the source tree whose modules the rank imported, relative to the tree."""
    error: str = ""
    failed_in: str = ""
    sites: Mapping[str, Sequence[tuple[int, str, int]]] = field(default_factory=dict)
    """The blocks of each site: their size, their holder, and their lifetime on the ledger's clock. It is empty unless
    the job asks for sites."""

    @classmethod
    def of_json(cls, told: Mapping[str, object]) -> Outcome:
        """Parse a rank's response, which is not trusted. Raise ValueError if the response is malformed."""
        outcome = _read(cls, told)
        if not (outcome.phases or outcome.error):
            raise ValueError(_("the answer has no phases"))
        return outcome


_Kind = TypeVar("_Kind")
_NAMES = {"phase": tuple(each.value for each in Phase), "holders": tuple(each.value for each in Holder)}
_NAMES |= {"kept": _NAMES["holders"], "failed_in": ("", *_NAMES["phase"])}


def _read(kind: type[_Kind], told: object) -> _Kind:
    """Make a dataclass from JSON, and check the types of its fields. Raise ValueError if a type is wrong."""
    if not isinstance(told, Mapping):
        raise ValueError(_("{kind}: expected an object").format(kind=kind.__name__))
    hints = get_type_hints(kind)
    if unknown := sorted(set(told) - set(hints)):
        raise ValueError(_("{kind}: unknown field {unknown}").format(kind=kind.__name__, unknown=unknown[0][:40]))
    values = {}
    for name, value in told.items():
        values[name] = _value(hints[name], value, f"{kind.__name__}.{name}")
        of_these = _NAMES.get(name, ())
        if of_these and not set(value if isinstance(value, Mapping) else (value,)) <= set(of_these):
            raise ValueError(_("{kind}.{name}: unknown name").format(kind=kind.__name__, name=name))
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
    raise ValueError(_("{where}: unexpected value").format(where=where))
