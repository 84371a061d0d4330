"""verl v0.8.0 of 2026-06-01."""

from __future__ import annotations

from .claim import SGLANG, VLLM
from .component import Component as C
from .documents import Document, images, pin

__all__ = ["V0_8_0"]

_NAME = "v0.8.0"
_START = "docs/ascend_tutorial/get_start"
_GUIDE = Document.of_verl(_NAME, f"{_START}/install_guidance.rst")
_WITH_VLLM = Document.of_verl(_NAME, f"{_START}/install_guidance.rst", VLLM)
_WITH_SGLANG = Document.of_verl(_NAME, f"{_START}/install_guidance.rst", SGLANG)
_DOCKER = Document.of_verl(_NAME, f"{_START}/dockerfile_build_guidance.rst")
_SCRIPT = Document.of_verl(_NAME, "scripts/install_sglang_mcore_npu.sh", SGLANG)
_REQUIREMENTS = Document.of_verl(_NAME, "requirements-npu.txt")
_SETUP = Document.of_verl(_NAME, "setup.py")
_ENGINE = Document.of_vllm_ascend("v0.18.0")

V0_8_0 = pin(
    _NAME,
    "7aed6b230776f963fa09509c10d9c3a767d1102c",
    {
        C.PYTHON: (_GUIDE.says(">=3.10,<3.12", note="3.11 is recommended"), _DOCKER.says("==3.11.*")),
        C.CANN: (_WITH_VLLM.says("==9.0.0"), _WITH_SGLANG.says(">=8.5.0")),
        C.DRIVER: (_WITH_VLLM.says("==26.0.rc1"), _WITH_SGLANG.says("==25.5.0")),
        C.TORCH: (_WITH_VLLM.says("==2.9.0"), _WITH_SGLANG.says("==2.8.0")),
        C.TORCH_NPU: (
            _WITH_VLLM.says("==2.9.0.post2"),
            _DOCKER.says("==2.9.0", note="the image has the build before that of install_guidance.rst"),
            _ENGINE.says("==2.9.0"),
            _WITH_SGLANG.says("==2.8.0.post2"),
        ),
        C.TORCHVISION: (_WITH_VLLM.says("==0.24.0"), _SCRIPT.says("==0.23.0")),
        C.VLLM: (_WITH_VLLM.says("==0.18.0", "v0.18.0"),),
        C.VLLM_ASCEND: (_WITH_VLLM.says("==0.18.*", "releases/v0.18.0", note="the head of a branch"),),
        C.SGLANG: (_WITH_SGLANG.says("==0.5.10", "v0.5.10"),),
        C.TRANSFORMERS: (_GUIDE.says("==5.3.0", note="vllm-ascend's requirements: >=4.57.4"),),
        C.TENSORDICT: (_REQUIREMENTS.says(">=0.8.0,<=0.10.0,!=0.9.0"),),
        C.NUMPY: (_REQUIREMENTS.says("<2.0.0"), _SETUP.says("<2.0.0")),
        C.EINOPS: (_REQUIREMENTS.says(""),),
        C.RAY: (_SETUP.says(">=2.41.0", note="requirements-npu.txt: any version"),),
        C.PEFT: (_REQUIREMENTS.says(">=0.15.2"),),
        C.PYARROW: (_SETUP.says(">=19.0.0", note="requirements-npu.txt: >=15.0.0"),),
        C.TRANSFER_QUEUE: (_REQUIREMENTS.says("==0.1.7"),),
        C.MINDSPEED: (
            _GUIDE.says("==0.16.*", "core_r0.16.0"),
            _DOCKER.says("==0.12.1", "2.3.0_core_r0.12.1", note="the image is older than install_guidance.rst"),
        ),
        C.MEGATRON: (
            _GUIDE.says("==0.16.*", "core_r0.16.0"),
            _DOCKER.says("==0.12.*", "core_v0.12.1", note="the image is older than install_guidance.rst"),
        ),
        C.MBRIDGE: (_DOCKER.says("==0.15.1"),),
        C.TRITON: (_GUIDE.says("==3.5.0", note="install_vllm_mcore_npu.sh uninstalls it first"),),
        C.TRITON_ASCEND: (
            _REQUIREMENTS.says("==3.2.1"),
            _GUIDE.says("==3.2.1"),
            _ENGINE.says("==3.2.0", note="verl's requirements replace it"),
        ),
        C.FLASH_ATTN: (_GUIDE.refuses(),),
    },
    images(
        _NAME,
        ("cann:9.0.0-910b-ubuntu22.04-py3.11", "Dockerfile.ascend_9.0.0_a2"),
        ("cann:9.0.0-a3-ubuntu22.04-py3.11", "Dockerfile.ascend_9.0.0_a3"),
    ),
)
