"""All environment variables of verl-npu: their names, values, defaults, and audiences.

All code that needs them reads them from this module: parsing, forwarding to Ray's workers, `verl-npu env`, and the
table in docs/reference/environment.md.
"""

from __future__ import annotations

import os

from .language import gettext as _
from .variable import CONTRIBUTOR, INTERNAL, Choice, Flag, Folder, Names, Number, Text
from .variable import VARIABLES as VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FEATURES = _("names of features, separated by commas")
_VIRTUAL_PREFIX = "VIRTUAL_ASCEND"
_VIRTUAL_CACHE = "VIRTUAL_ASCEND_CACHE"

SWITCH = Choice(
    "VERL_NPU",
    _(
        "whether verl is patched; auto patches it if Ascend software (an importable torch_npu) or the "
        "virtual Ascend is there"
    ),
    ("on", "off", "auto"),
    default="auto",
)
DISABLE = Names("VERL_NPU_DISABLE", _("features that are switched off"), expected=_FEATURES)
STRICT = Flag(
    "VERL_NPU_STRICT",
    _("1: drift and failures raise an error at import, and a job whose processes differ does not start training"),
)
FORCE = Names(
    "VERL_NPU_FORCE",
    _("features that are applied even if upstream drifted; every summary then says TAINTED"),
    expected=_FEATURES,
)
MANIFEST_DIR = Folder(
    "VERL_NPU_MANIFEST_DIR", _("a folder to which each process writes its manifest as JSON"), expected=_("a folder")
)
LANGUAGE = Text(
    "VERL_NPU_LANGUAGE",
    _(
        "the language of the commands' output: en or zh_CN; without it, the locale decides (LC_ALL, LC_MESSAGES, "
        "LANG), and otherwise it is English"
    ),
    expected=_("the name of a locale"),
    forwarded=False,
)
PLACEMENT_TIMEOUT = Number(
    "VERL_NPU_PLACEMENT_TIMEOUT",
    _("how long Ray may take to place the job before verl-npu raises an error"),
    unit=_("seconds"),
    default="120",
    least=1e-3,
    most=1e9,
)
TOKEN_BUDGET = Flag(
    "VERL_NPU_TOKEN_BUDGET",
    _(
        "1: no micro-batch of a dynamic batch holds more tokens than its max_token_len_per_gpu allows; see "
        "docs/operators.md"
    ),
)
WEIGHT_SYNC_TIMEOUT = Number(
    "VERL_NPU_WEIGHT_SYNC_TIMEOUT",
    _("how long a rank in a weight sync waits for the others before it names the missing one"),
    unit=_("seconds"),
    default="600",
    least=1e-6,
    most=1 << 20,
)
WEIGHT_SYNC_CHECK = Choice(
    "VERL_NPU_WEIGHT_SYNC_CHECK",
    _(
        "the checks of a weight sync after names, shapes and dtypes agree; engine proves which weights the engine "
        "computes with"
    ),
    ("none", "checksums", "engine"),
    default="none",
)
COMPARE_LAYERS = Number(
    "VERL_NPU_COMPARE_LAYERS",
    _(
        "N: the layers of the trainer and of the rollout engine are compared on the first step and on every N-th one; "
        "0: never; see docs/watch-and-compare.md"
    ),
    unit="",
    default="0",
    least=0,
    most=1e5,
    whole=True,
)
OLD_ANSWERS = Choice(
    "VERL_NPU_OLD_ANSWERS",
    _("whether a rollout server that answers with old weights causes a warning or an error that ends the job"),
    ("warn", "error"),
    default="warn",
)
WEIGHT_SYNC_BUCKET_MB = Number(
    "VERL_NPU_WEIGHT_SYNC_BUCKET_MB",
    _("the size of one message in a weight sync; each rank that moves weights keeps two of them"),
    unit=_("MiB"),
    default="16",
    least=1e-6,
    most=1 << 20,
)
WEIGHT_SYNC_PORT = Number(
    "VERL_NPU_WEIGHT_SYNC_PORT",
    _("the port at which the ranks of a weight sync meet; 0 picks a free one"),
    unit="",
    default="0",
    least=0,
    most=65535,
    whole=True,
)
DRIVER_MANIFEST = Text(
    "VERL_NPU_DRIVER_MANIFEST",
    _("the driver's manifest, which it hands to its workers"),
    expected=_("a value that verl-npu wrote, compressed"),
    forwarded=False,
    audience=INTERNAL,
)
RAY_HOOK = Text(
    "VERL_NPU_RAY_HOOK",
    _("the RAY_RUNTIME_ENV_HOOK that the user set; verl-npu calls it before its own"),
    expected=_("the path of a Python function"),
    forwarded=False,
    audience=INTERNAL,
)
UPSTREAMS = Text(
    "VERL_NPU_UPSTREAMS",
    _("a folder of git checkouts (verl-796871d7 and so on) for tests and scripts at pins that no package index has"),
    expected=_("a folder"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
VENVS = Text(
    "VERL_NPU_VENVS",
    _("where the scripts make their virtual environments; by default the root of the project"),
    expected=_("a folder"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
MINDSPEED = Text(
    "VERL_NPU_MINDSPEED",
    _("a checkout of MindSpeed for the jobs with Megatron"),
    expected=_("a folder"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
VLLM_ASCEND_SOURCE = Text(
    "VERL_NPU_VLLM_ASCEND_SOURCE",
    _(
        "a checkout of vllm-ascend at 1de16ead8e, from which the engine of the published image is "
        "built for virtual NPUs"
    ),
    expected=_("a folder"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
KERNELS = Folder(
    "VERL_NPU_KERNELS",
    _(
        "where `verl-npu kernels` keeps Ascend's Triton compiler and its verdicts; by default "
        "~/.cache/verl-npu/kernels"
    ),
    expected=_("a folder that only you can write to"),
    forwarded=False,
)
LAUNCHES = Folder(
    "VERL_NPU_KERNEL_LAUNCHES",
    _(
        "a file to which each process on virtual NPUs appends its launches of Triton kernels, for "
        "`verl-npu kernels --launches`"
    ),
    expected=_("the path of a file"),
)
KERNEL_TRITON = Folder(
    "VERL_NPU_KERNEL_TRITON",
    _("a folder with the Triton that runs kernels on virtual NPUs where none is installed"),
    expected=_("a folder"),
    audience=INTERNAL,
)
VLLM_ASCEND = Text(
    "VERL_NPU_VLLM_ASCEND",
    _("the Python executables of environments with vllm-ascend, for the tests that serve with it on virtual NPUs"),
    expected=_("paths, separated by `:`"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
TORCH_NPU = Text(
    "VERL_NPU_TORCH_NPU",
    _(
        "the Python executables of environments with a torch_npu but no CANN, for the tests of weight "
        "sync's ranks with its wheels"
    ),
    expected=_("paths, separated by `:`"),
    forwarded=False,
    audience=CONTRIBUTOR,
)
VLLM_ASCEND_TESTS = Text(
    "VERL_NPU_VLLM_ASCEND_TESTS",
    _("the packages that vllm-ascend's own unit tests need; `python -m tests.vllm_ascend --help` lists them"),
    expected=_("a folder that `pip install --target` filled"),
    forwarded=False,
    audience=CONTRIBUTOR,
)


def forwarded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that the user set and that must reach every process of the job, with their values.

    Folders are returned as absolute paths.
    """
    given = os.environ if environment is None else environment
    ours = {
        name: variable.for_workers(given[name])
        for name, variable in VARIABLES.items()
        if variable.forwarded and name in given
    }
    # The virtual Ascend's variables too: all processes of a job have virtual NPUs, or none has.
    virtual = {name: text for name, text in given.items() if name.startswith(_VIRTUAL_PREFIX)}
    if virtual.get(_VIRTUAL_CACHE):
        # Workers run in another working directory.
        virtual[_VIRTUAL_CACHE] = os.path.abspath(virtual[_VIRTUAL_CACHE])
    return ours | virtual
