"""Each environment variable of verl-npu, once: its name, what it may hold, its default, and who must see it.

Parsing, the forwarding to Ray's workers, `verl-npu env` and the table in docs/environment.md all come from here.
"""

from __future__ import annotations

import os

from .variable import CONTRIBUTOR, INTERNAL, VARIABLES, Choice, Flag, Folder, Names, Number, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CACHE",
    "DISABLE",
    "DRIVER_MANIFEST",
    "FORCE",
    "MANIFEST_DIR",
    "MINDSPEED",
    "PLACEMENT_TIMEOUT",
    "RAY_HOOK",
    "STRICT",
    "SWITCH",
    "TOKEN_BUDGET",
    "UPSTREAMS",
    "VARIABLES",
    "VENVS",
    "VIRTUAL",
    "VIRTUAL_CANN_VERSION",
    "VIRTUAL_COPIES",
    "VIRTUAL_DRIVER_VERSION",
    "VIRTUAL_FAULTS",
    "VIRTUAL_MEMORY",
    "VIRTUAL_PHANTOM",
    "VIRTUAL_TORCH_NPU",
    "VIRTUAL_TORCH_NPU_VERSION",
    "WEIGHT_SYNC_BUCKET_MB",
    "WEIGHT_SYNC_CHECK",
    "WEIGHT_SYNC_PORT",
    "WEIGHT_SYNC_TIMEOUT",
    "forwarded",
]

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
MANIFEST_DIR = Folder(
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
TOKEN_BUDGET = Flag(
    "VERL_NPU_TOKEN_BUDGET",
    "1: no micro-batch of a dynamic batch holds more tokens than its max_token_len_per_gpu allows; see "
    "docs/micro-batches.md",
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
    "what a weight sync compares beyond names, shapes and dtypes; engine proves what the engine computes with",
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
    unit="",
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
VIRTUAL_PHANTOM = Number(
    "VERL_NPU_VIRTUAL_PHANTOM",
    "the size from which on a virtual NPU's tensor is a phantom: counted, and never computed; 0 is none",
    unit="MiB",
    default="0",
    least=0,
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
VIRTUAL_TORCH_NPU = Choice(
    "VERL_NPU_VIRTUAL_TORCH_NPU",
    "whose torch_npu virtual NPUs have: an installed one over a stub CANN, ours, or that which is installed, if any",
    ("auto", "real", "ours"),
    default="auto",
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
CACHE = Folder(
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
RAY_HOOK = Text(
    "VERL_NPU_RAY_HOOK",
    "the RAY_RUNTIME_ENV_HOOK that the user set, which is called before verl-npu's own",
    expected="the path of a Python function",
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
VLLM_ASCEND = Text(
    "VERL_NPU_VLLM_ASCEND",
    "the Pythons of environments with vllm-ascend, for the tests that serve with it on virtual NPUs",
    expected="paths, separated by `:`",
    forwarded=False,
    audience=CONTRIBUTOR,
)
TORCH_NPU = Text(
    "VERL_NPU_TORCH_NPU",
    "the Pythons of environments with a torch_npu and no CANN, for the tests of weight sync's ranks under its wheels",
    expected="paths, separated by `:`",
    forwarded=False,
    audience=CONTRIBUTOR,
)
PHANTOM_PYTHON = Text(
    "VERL_NPU_PHANTOM_PYTHON",
    "the Python of an environment with another torch, transformers and peft, for the tests of phantom memory's peaks",
    expected="a path",
    forwarded=False,
    audience=CONTRIBUTOR,
)
VLLM_ASCEND_TESTS = Text(
    "VERL_NPU_VLLM_ASCEND_TESTS",
    "what vllm-ascend's own unit tests need beside it: `python -m tests.vllm_ascend --help` lists it",
    expected="a folder that `pip install --target` filled",
    forwarded=False,
    audience=CONTRIBUTOR,
)


def forwarded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that the user set and that every process of the job must be given, with what they are
    given: the user's text, and for a folder its absolute path."""
    given = os.environ if environment is None else environment
    return {
        name: variable.for_workers(given[name])
        for name, variable in VARIABLES.items()
        if variable.forwarded and name in given
    }
