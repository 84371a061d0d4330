"""Each environment variable of verl-npu, once: its name, what it may hold, its default, and who must see it.

Parsing, the forwarding to Ray's workers, `verl-npu --help` and the table in docs/environment.md all come from here.

This module is part of every process that imports torch, so it imports neither dataclasses nor typing, which would cost
more than the module itself: the classes are plain ones for that reason.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CACHE",
    "CONTRIBUTOR",
    "DISABLE",
    "DRIVER_MANIFEST",
    "FORCE",
    "INTERNAL",
    "MANIFEST_DIR",
    "PLACEMENT_TIMEOUT",
    "STRICT",
    "SWITCH",
    "USER",
    "VARIABLES",
    "VIRTUAL",
    "VIRTUAL_CANN_VERSION",
    "VIRTUAL_COPIES",
    "VIRTUAL_DRIVER_VERSION",
    "VIRTUAL_FAULTS",
    "VIRTUAL_MEMORY",
    "VIRTUAL_TORCH_NPU_VERSION",
    "WEIGHT_SYNC_BUCKET_MB",
    "WEIGHT_SYNC_CHECK",
    "WEIGHT_SYNC_PORT",
    "WEIGHT_SYNC_TIMEOUT",
    "Choice",
    "Flag",
    "Names",
    "Number",
    "Text",
    "Variable",
    "forwarded",
]

USER, CONTRIBUTOR, INTERNAL = "user", "contributor", "internal"
"""For whom a variable is: users of verl-npu, those who work on it, or its own processes among themselves."""

VARIABLES: dict[str, Variable] = {}
"""All variables by name, in the order in which the documents list them."""


class Variable:
    """One environment variable. Its subclasses know what it may hold, and their `read` gives it parsed."""

    __slots__ = ("audience", "default", "expected", "forwarded", "name", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        expected: str,
        default: str = "",
        forwarded: bool = True,
        audience: str = USER,
    ) -> None:
        self.name = name
        self.summary = summary
        """What it does, in one line."""
        self.expected = expected
        """What it may hold, as the error for a wrong value says it."""
        self.default = default
        self.forwarded = forwarded
        """Whether workers must be given it: on other hosts they inherit nothing from the shell of the user."""
        self.audience = audience
        VARIABLES[name] = self

    def text(self, environment: Mapping[str, str] | None = None) -> str:
        """Return its text without the blanks around it, and the default where nothing else is left."""
        return (os.environ if environment is None else environment).get(self.name, "").strip() or self.default

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether the user gave it a text other than blanks."""
        return bool((os.environ if environment is None else environment).get(self.name, "").strip())

    def refuse(self, text: str, fix: str = "correct it or leave it out") -> Exception:
        """Return the SettingError for a text that is not understood."""
        from .errors import SettingError

        return SettingError(subject=f"{self.name}={text!r}", expected=self.expected, found=repr(text), fix=fix)


class Text(Variable):
    """Any text."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return its text."""
        return self.text(environment)


class Choice(Variable):
    """One of a few words, in upper or lower case."""

    __slots__ = ("words",)

    def __init__(
        self,
        name: str,
        summary: str,
        words: tuple[str, ...],
        *,
        default: str,
        forwarded: bool = True,
        audience: str = USER,
    ) -> None:
        expected = f"{', '.join(words[:-1])} or {words[-1]}"
        super().__init__(name, summary, expected=expected, default=default, forwarded=forwarded, audience=audience)
        self.words = words

    def read(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the word in lower case. Raises SettingError for any other."""
        text = self.text(environment)
        if text.lower() not in self.words:
            raise self.refuse(text)
        return text.lower()


class Flag(Choice):
    """0 or 1."""

    __slots__ = ()

    def __init__(self, name: str, summary: str, *, forwarded: bool = True) -> None:
        super().__init__(name, summary, ("0", "1"), default="0", forwarded=forwarded)

    def read(self, environment: Mapping[str, str] | None = None) -> bool:  # type: ignore[override]  # a flag is a bool
        """Return whether it is 1. Raises SettingError for a text that is neither 0 nor 1."""
        return super().read(environment) == "1"


class Number(Variable):
    """A number within limits; a whole one if `whole` is set."""

    __slots__ = ("least", "most", "unit", "whole")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        unit: str,
        default: str,
        least: float,
        most: float,
        whole: bool = False,
        forwarded: bool = True,
    ) -> None:
        kind = "a whole number" if whole else "a number"
        expected = f"{kind} of {unit} from {least:g} to {most:g}"
        super().__init__(name, summary, expected=expected, default=default, forwarded=forwarded)
        self.unit = unit
        self.least = least
        self.most = most
        self.whole = whole

    def read(self, environment: Mapping[str, str] | None = None) -> float:
        """Return the number. Raises SettingError for a text that is none, or one outside the limits."""
        text = self.text(environment)
        try:
            value = float(int(text)) if self.whole else float(text)
        except ValueError:
            raise self.refuse(text) from None
        # Written so that a NaN, which compares with nothing, is refused as well.
        if not self.least <= value <= self.most:
            raise self.refuse(text)
        return value


class Names(Variable):
    """Names separated by commas."""

    __slots__ = ()

    def read(self, environment: Mapping[str, str] | None = None) -> frozenset[str]:
        """Return the names; blanks around them do not count."""
        return frozenset(filter(None, (name.strip() for name in self.text(environment).split(","))))


def forwarded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that the user set and that every process of the job must be given, with their texts."""
    given = os.environ if environment is None else environment
    return {name: given[name] for name, variable in VARIABLES.items() if variable.forwarded and name in given}


_FEATURES = "names of features, separated by commas"
_VERSION = "a version"

SWITCH = Choice(
    "VERL_NPU",
    "whether verl is patched; auto means if Ascend software (an importable torch_npu) or the virtual Ascend is there",
    ("on", "off", "auto"),
    default="auto",
)
DISABLE = Names("VERL_NPU_DISABLE", "features that are left out", expected=_FEATURES)
STRICT = Flag(
    "VERL_NPU_STRICT",
    "1: drift and failures are errors at import, and a job whose processes differ does not start training",
)
FORCE = Names(
    "VERL_NPU_FORCE",
    "features that are applied although upstream drifted; every summary then says TAINTED",
    expected=_FEATURES,
)
MANIFEST_DIR = Text(
    "VERL_NPU_MANIFEST_DIR", "a folder to which each process writes what it did, as JSON", expected="a folder"
)
PLACEMENT_TIMEOUT = Number(
    "VERL_NPU_PLACEMENT_TIMEOUT",
    "how long Ray may take to place the job before that is an error",
    unit="seconds",
    default="120",
    least=1e-3,
    most=1e9,
)
WEIGHT_SYNC_TIMEOUT = Number(
    "VERL_NPU_WEIGHT_SYNC_TIMEOUT",
    "how long a rank of a weight sync waits for the others before it names the one that is missing",
    unit="seconds",
    default="600",
    least=1e-6,
    most=1 << 20,
)
WEIGHT_SYNC_CHECK = Choice(
    "VERL_NPU_WEIGHT_SYNC_CHECK",
    "what a weight sync compares beyond names, shapes and dtypes; engine reads the engine's parameters back (slow)",
    ("none", "checksums", "engine"),
    default="none",
)
WEIGHT_SYNC_BUCKET_MB = Number(
    "VERL_NPU_WEIGHT_SYNC_BUCKET_MB",
    "the size of one message of a weight sync; each rank that moves weights keeps two of them",
    unit="MiB",
    default="16",
    least=1e-6,
    most=1 << 20,
)
WEIGHT_SYNC_PORT = Number(
    "VERL_NPU_WEIGHT_SYNC_PORT",
    "the port at which the ranks of a weight sync meet; 0 is any free one",
    unit="a port",
    default="0",
    least=0,
    most=65535,
    whole=True,
)
VIRTUAL = Number(
    "VERL_NPU_VIRTUAL",
    "how many virtual NPUs take the place of real ones; 0 is none",
    unit="NPUs",
    default="0",
    least=0,
    most=64,  # kMaxDevices in csrc/runtime.h
    whole=True,
)
VIRTUAL_MEMORY = Number(
    "VERL_NPU_VIRTUAL_MEMORY",
    "the memory of one virtual NPU",
    unit="GiB",
    default="64",  # kUsualMemory in csrc/allocator.h
    least=1e-9,
    most=1 << 20,
)
VIRTUAL_COPIES = Choice(
    "VERL_NPU_VIRTUAL_COPIES",
    "when a non-blocking copy between host and virtual NPU has arrived: at once, or when it is waited for",
    ("immediate", "delayed"),
    default="immediate",
)
VIRTUAL_FAULTS = Text(
    "VERL_NPU_VIRTUAL_FAULTS",
    "failures that the virtual Ascend makes, such as die:collective=3:rank=1; see docs/virtual-ascend.md",
    expected="faults separated by commas",
)
VIRTUAL_TORCH_NPU_VERSION = Text(
    "VERL_NPU_VIRTUAL_TORCH_NPU_VERSION",
    "the torch_npu that the virtual Ascend pretends to be",
    expected=_VERSION,
    default="2.7.1",
)
VIRTUAL_CANN_VERSION = Text(
    "VERL_NPU_VIRTUAL_CANN_VERSION",
    "the CANN that the virtual Ascend pretends to have",
    expected=_VERSION,
    default="8.3.RC1",
)
VIRTUAL_DRIVER_VERSION = Text(
    "VERL_NPU_VIRTUAL_DRIVER_VERSION",
    "the NPU driver that the virtual Ascend pretends to have",
    expected=_VERSION,
    default="25.2.0",
)
CACHE = Text(
    "VERL_NPU_CACHE",
    "the folder to which the virtual device is compiled; ~/.cache/verl-npu if it is not set",
    expected="a folder",
)
DRIVER_MANIFEST = Text(
    "VERL_NPU_DRIVER_MANIFEST",
    "what the driver did, as it tells its workers",
    expected="the JSON that verl-npu puts there",
    forwarded=False,
    audience=INTERNAL,
)
UPSTREAMS = Text(
    "VERL_NPU_UPSTREAMS",
    "a folder of git checkouts (verl-796871d7 and so on) for tests and scripts of pins that are in no registry",
    expected="a folder",
    forwarded=False,
    audience=CONTRIBUTOR,
)
VENVS = Text(
    "VERL_NPU_VENVS",
    "where the scripts make their virtual environments; the root of the project if it is not set",
    expected="a folder",
    forwarded=False,
    audience=CONTRIBUTOR,
)
MINDSPEED = Text(
    "VERL_NPU_MINDSPEED",
    "a checkout of MindSpeed for the jobs with Megatron",
    expected="a folder",
    forwarded=False,
    audience=CONTRIBUTOR,
)
