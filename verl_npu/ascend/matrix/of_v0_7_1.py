"""verl v0.7.1 of 2026-03-16."""

from __future__ import annotations

from .claim import SGLANG
from .component import Component as C
from .documents import Document, images, pin

__all__ = ["V0_7_1"]

_NAME = "v0.7.1"
_TUTORIAL = "docs/ascend_tutorial"
_QUICK = Document.of_verl(_NAME, f"{_TUTORIAL}/ascend_quick_start.rst")
_DOCKER = Document.of_verl(_NAME, f"{_TUTORIAL}/dockerfile_build_guidance.rst")
_SGLANG = Document.of_verl(_NAME, f"{_TUTORIAL}/ascend_sglang_quick_start.rst", SGLANG)
_REQUIREMENTS = Document.of_verl(_NAME, "requirements-npu.txt")
_SETUP = Document.of_verl(_NAME, "setup.py")
_ENGINE = Document.of_vllm_ascend("v0.13.0")
_RELEASED = Document.of_verl("v0.9.0", "docker/ascend/Dockerfile.ascend_8.5.0_a2_v0.7.1")

V0_7_1 = pin(
    _NAME,
    "bec9ef74768dd201881cd4e54cd0385e87caae27",
    {
        C.PYTHON: (_QUICK.says(">=3.10,<3.12"), _DOCKER.says("==3.11.*"), _SGLANG.says("==3.11.*")),
        C.CANN: (_QUICK.says("==8.5.0"), _DOCKER.says("==8.5.0"), _SGLANG.says(">=8.3.RC1")),
        C.DRIVER: (_SGLANG.says(">=25.3.RC1"),),
        C.TORCH: (_QUICK.says("==2.8.0"), _SGLANG.says(">=2.7.1")),
        C.TORCH_NPU: (
            _QUICK.says("==2.8.0"),
            _ENGINE.says("==2.8.0.post2", note="vllm-ascend pins a later build"),
            _SGLANG.says(">=2.7.1.post2"),
        ),
        C.TORCHVISION: (
            _ENGINE.says("", note="torchvision 0.23.0 is the one that is built against torch 2.8.0"),
            _QUICK.says("==0.22.1", note="it is built against torch 2.7.1"),
        ),
        C.VLLM: (_QUICK.says("==0.13.0", "v0.13.0"),),
        C.VLLM_ASCEND: (_QUICK.says("==0.13.*", "releases/v0.13.0", note="the head of a branch"),),
        C.SGLANG: (_SGLANG.says("==0.5.8", "v0.5.8"),),
        C.TRANSFORMERS: (_QUICK.says("==4.57.6", note="vllm-ascend's requirements: >=4.57.4,<5"),),
        C.TENSORDICT: (_REQUIREMENTS.says(">=0.8.0,<=0.10.0,!=0.9.0"),),
        C.NUMPY: (_REQUIREMENTS.says("<2.0.0"), _SETUP.says("<2.0.0")),
        C.EINOPS: (_REQUIREMENTS.says(""),),
        C.RAY: (_SETUP.says(">=2.41.0", note="requirements-npu.txt: any version"),),
        C.PEFT: (_REQUIREMENTS.says(">=0.15.2"),),
        C.PYARROW: (_SETUP.says(">=19.0.0", note="requirements-npu.txt: >=15.0.0"),),
        C.MINDSPEED: (_QUICK.says("==0.12.1", "2.3.0_core_r0.12.1"),),
        C.MEGATRON: (_QUICK.says("==0.12.*", "core_v0.12.1"),),
        C.MBRIDGE: (_RELEASED.says("==0.15.1"), _DOCKER.says("", note="'latest version'")),
        C.TRITON: (_QUICK.refuses(note="'triton need not be installed', and is uninstalled first"),),
        C.TRITON_ASCEND: (_REQUIREMENTS.says("==3.2.0"), _QUICK.says("==3.2.0"), _ENGINE.says("==3.2.0")),
        C.FLASH_ATTN: (_QUICK.refuses(),),
        C.LIGER_KERNEL: (_QUICK.refuses(),),
    },
    images(
        _NAME,
        ("cann:8.5.0-910b-ubuntu22.04-py3.11", "Dockerfile.ascend_8.5.0_a2"),
        ("cann:8.5.0-a3-ubuntu22.04-py3.11", "Dockerfile.ascend_8.5.0_a3"),
    ),
)
