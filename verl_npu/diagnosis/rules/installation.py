"""What is installed, and does not load or does not fit together."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["INSTALLATION"]

_PAIR = "torch and torch_npu must be of one release; `verl-npu doctor` names the pair of your pin"

INSTALLATION = (
    rule(
        "driver-library",
        Precision.EXACT,
        r"(?P<library>libascend_hal\.so|libdrvdsmi_host\.so|libdcmi\.so)\S*: cannot open shared object",
        means="{library} of the NPU's driver is not there: this is a host without a driver, or a container without it",
        fix="run on a host with an NPU, and mount /usr/local/Ascend/driver, /usr/local/dcmi and /dev/davinci* into "
        "the "
        "container; while an image is built there is no driver, so nothing may import torch_npu then",
        seen=("vllm-project/vllm-ascend#661", "flagos-ai/FlagCX#451"),
    ),
    rule(
        "nnal-library",
        Precision.EXACT,
        r"(?P<library>libatb\.so|libatb_\w+\.so|libmki\.so)\S*: cannot open shared object",
        means="{library} of CANN's package nnal is not found",
        fix="install nnal of the same version as the CANN toolkit, and `source /usr/local/Ascend/nnal/atb/set_env.sh` "
        "after the toolkit's set_env.sh",
        seen=("vllm-project/vllm-ascend#152",),
    ),
    rule(
        "cann-library",
        Precision.EXACT,
        r"(?P<library>lib(?:hccl|ascendcl|acl\w*|ge_\w+|graph|opapi|runtime|msprofiler|fmk_parser"
        r"|ascend_protobuf)\.so)\S*: "
        r"cannot open shared object",
        means="{library} of CANN is not found: CANN is not installed, or its environment was not set in this shell",
        fix="`source /usr/local/Ascend/ascend-toolkit/set_env.sh` (CANN 8.5 and newer: "
        "/usr/local/Ascend/cann/set_env.sh) in "
        "the shell that starts the job, and on each host before `ray start`",
        seen=("torch_npu 2.7.1: __init__.py", "PaddlePaddle/FastDeploy#1808"),
    ),
    rule(
        "library-too-old",
        Precision.EXACT,
        r"version [`'\u2018](?P<wants>(?:CXXABI|GLIBCXX|GLIBC)_[\d.]+)['\u2019] not found",
        means="the system's C++ or C library is older than a wheel needs ({wants})",
        fix="put the newer libstdc++ of your conda environment first: `export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:"
        "$LD_LIBRARY_PATH`, or use an image with a newer system",
        seen=("saturncloud/images#483", "pytorch/pytorch#8318"),
    ),
    rule(
        "torch-pair",
        Precision.EXACT,
        r"libtorch_npu\.so: undefined symbol",
        means="torch_npu was built for another torch than the one that is installed, or needs another CANN",
        fix=f"{_PAIR}; install both again, torch from its index for CPUs",
        seen=("Ascend/pytorch#35", "sgl-project/sglang#28628", "vllm-project/vllm-ascend#117"),
    ),
    rule(
        "nnal-abi",
        Precision.EXACT,
        r"nnal/atb/\S*: undefined symbol|libtbe_adapter\.so: undefined symbol",
        means="nnal's libraries of the other C++ ABI were loaded (cxx_abi_0 and cxx_abi_1), or nnal and the toolkit "
        "differ",
        fix="`source /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1` if `torch.compiled_with_cxx11_abi()` is "
        "True, else "
        "with 0, and install nnal of the toolkit's version",
        seen=("Ascend/pytorch#99",),
    ),
    rule(
        "static-tls",
        Precision.EXACT,
        r"(?P<library>\S*\.so\S*): cannot allocate memory in static TLS block",
        means="a library was loaded too late to get thread-local memory, as happens on ARM",
        fix="load it first: `export LD_PRELOAD={library}`",
        seen=("Ascend/pytorch#7",),
    ),
    rule(
        "not-a-package",
        Precision.EXACT,
        r"module 'torch_npu' has no attribute '(?:_autoload|npu)'|No module named 'torch_npu\._C'",
        means="Python found a folder named torch_npu that is not the installed package: a checkout in the working "
        "directory, or half an installation",
        fix="start from another directory, and install torch_npu again",
        seen=("Ascend/pytorch#24", "flashserve/flash-linear-attention-npu#2"),
    ),
    rule(
        "two-accelerators",
        Precision.EXACT,
        r"Two accelerators cannot be used at the same time",
        means="torch is a CUDA build on a machine with a GPU, or another accelerator's plugin is loaded: torch_npu "
        "refuses to load beside it",
        fix="install torch's build for CPUs",
        seen=("torch_npu 2.7.1: __init__.py",),
    ),
    rule(
        "torch-replaced",
        Precision.EXACT,
        r"torch-npu (?P<npu>\S+) requires torch==(?P<wants>[\w.+]+), but you have torch (?P<has>[\w.+]+)",
        means="an installation replaced torch: torch_npu {npu} needs {wants}, and {has} is installed",
        fix=f"{_PAIR}. Install vllm first, vllm-ascend after it, and torch with torch_npu last, with a constraints "
        f"file: "
        "`verl-npu env --pin PIN` prints the commands",
        seen=("vllm-project/vllm-ascend#4081", "vllm-project/vllm-ascend#7587"),
        anywhere=True,
    ),
    rule(
        "pip-conflict",
        Precision.EXACT,
        r"ResolutionImpossible|depends on torch==(?P<first>\S+)\s+\S+ \S+ depends on torch==(?P<second>\S+)",
        means="pip was asked for packages that want different torch: vllm's and vllm-ascend's requirements contradict "
        "each other",
        fix="install them one after the other: vllm first (built with VLLM_TARGET_DEVICE=empty), then vllm-ascend; "
        "`verl-npu env --pin PIN` prints the commands",
        seen=("vllm-project/vllm-ascend#12404", "vllm-project/vllm-ascend#7089", "vllm-project/vllm-ascend#3266"),
        anywhere=True,
    ),
    rule(
        "numpy-2",
        Precision.EXACT,
        r"compiled using NumPy 1\.x cannot be run in|module 'numpy' has no attribute 'float_'"
        r"|`np\.float_` was removed",
        means="numpy 2 is installed, and a package here was built for numpy 1",
        fix="pip install 'numpy<2'",
        seen=("vllm-project/vllm-ascend#1875", "vllm-project/vllm-ascend#473", "sophgo/torch-tpu#2"),
    ),
    rule(
        "torchvision",
        Precision.EXACT,
        r"operator torchvision::nms does not exist|Couldn't load custom C\+\+ ops",
        means="torchvision is of another release than torch",
        fix="install the torchvision that belongs to your torch (0.20.1 for 2.5.1, 0.22.1 for 2.7.1, 0.23.0 for "
        "2.8.0), "
        "from torch's index for CPUs",
        seen=("vllm-project/vllm-ascend#477", "pytorch/vision#6725"),
    ),
    rule(
        "triton-clash",
        Precision.EXACT,
        r"0 active drivers \(\[\]\)|0 active driver\(s\) found",
        means="triton was installed over triton-ascend: both own the folder triton",
        fix="`pip uninstall -y triton triton-ascend`, then install triton-ascend of your pin alone",
        seen=("modelscope/ms-swift#3279", "vllm-project/vllm-ascend#7359", "triton-lang/triton-ascend#306"),
    ),
    rule(
        "transformers-too-new",
        Precision.EXACT,
        r"cannot import name '(?:index_first_axis|pad_input|unpad_input)' from 'transformers\.integrations\.npu_flash",
        means="transformers from 4.55.2 on has no padding functions for NPUs, and this verl imports them there",
        fix="activate verl-npu, whose feature attention puts them back, or install transformers 4.52.4 to 4.55.1",
        seen=("verl-project/verl#3561", "huggingface/transformers#40002"),
    ),
    rule(
        "transformers-too-old",
        Precision.EXACT,
        r"transformers version >= (?P<wants>\S+) is required on ASCEND NPU, current version is (?P<has>\S+)",
        means="this verl needs transformers {wants} or newer on NPUs, and {has} is installed",
        fix="pip install transformers=={wants}",
        seen=("verl 796871d7: verl/__init__.py",),
    ),
    rule(
        "no-einops",
        Precision.EXACT,
        r"No module named 'einops'",
        means="verl from 796871d7 to v0.7.1 needs einops on NPUs for use_remove_padding and Ulysses, and does not "
        "ask for it",
        fix="pip install einops",
        seen=("verl v0.6.1: verl/utils/npu_utils.py",),
    ),
    rule(
        "compiler-packages",
        Precision.EXACT,
        r"No module named '(?P<name>tbe(?:\.\w+)*|te|decorator|attr|attrs|cloudpickle|synr|absl|psutil)'|\bE40021\b"
        r"|AclSetCompileopt[^\n]*error code is 500001",
        means="CANN compiles operators with Python, and this Python lacks what that needs ({name})",
        fix="`source` CANN's set_env.sh, and pip install decorator attrs psutil absl-py cloudpickle ml-dtypes scipy "
        "tornado protobuf",
        seen=("opendatalab/MinerU#2258", "Ascend/pytorch#29", "Ascend/pytorch#7"),
    ),
)
