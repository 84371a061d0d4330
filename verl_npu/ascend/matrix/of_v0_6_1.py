"""verl v0.6.1 of 2025-11-14."""

from __future__ import annotations

from .claim import SGLANG
from .component import Component as C
from .documents import Document, images, pin

__all__ = ["V0_6_1"]

_NAME = "v0.6.1"
_TUTORIAL = "docs/ascend_tutorial"
_QUICK = Document.of_verl(_NAME, f"{_TUTORIAL}/ascend_quick_start.rst")
_DOCKER = Document.of_verl(_NAME, f"{_TUTORIAL}/dockerfile_build_guidance.rst")
_SGLANG = Document.of_verl(_NAME, f"{_TUTORIAL}/ascend_sglang_quick_start.rst", SGLANG)
_REQUIREMENTS = Document.of_verl(_NAME, "requirements-npu.txt")
_SETUP = Document.of_verl(_NAME, "setup.py")
_ENGINE = Document.of_vllm_ascend("v0.9.1")

V0_6_1 = pin(
    _NAME,
    "d62da4950573d7a4b7ef2362337952e7ab59e78d",
    {
        C.PYTHON: (_QUICK.says("==3.10.*"), _DOCKER.says("==3.11.*"), _SGLANG.says("==3.11.*")),
        C.CANN: (_QUICK.says("==8.2.RC1"), _SGLANG.says("==8.3.RC1")),
        C.DRIVER: (_SGLANG.says("==25.3.RC1"),),
        C.TORCH: (_QUICK.says("==2.5.1"), _SGLANG.says("==2.6.0")),
        C.TORCH_NPU: (
            _QUICK.says("==2.5.1"),
            _ENGINE.says("==2.5.1.post1", note="vllm-ascend pins a later build"),
            _SGLANG.says("==2.6.0"),
        ),
        C.TORCHVISION: (_REQUIREMENTS.says("==0.20.1"),),
        C.VLLM: (_QUICK.says("==0.9.1", "v0.9.1"),),
        C.VLLM_ASCEND: (_QUICK.says("==0.9.1", "v0.9.1"),),
        C.SGLANG: (_SGLANG.says("", note="from git; no revision is named"),),
        C.TRANSFORMERS: (
            _REQUIREMENTS.says("==4.52.4"),
            _QUICK.says("==4.52.4"),
            _SGLANG.says("==4.56.1"),
        ),
        C.TENSORDICT: (_REQUIREMENTS.says(">=0.8.0,<=0.10.0,!=0.9.0"),),
        C.NUMPY: (_REQUIREMENTS.says("<2.0.0"), _SETUP.says("<2.0.0")),
        C.EINOPS: (_REQUIREMENTS.says(""),),
        C.RAY: (_REQUIREMENTS.says("==2.46.0", note="setup.py: >=2.41.0"),),
        C.PEFT: (_REQUIREMENTS.says(">=0.15.2"),),
        C.PYARROW: (_SETUP.says(">=19.0.0", note="requirements-npu.txt: >=15.0.0"),),
        C.MINDSPEED: (_DOCKER.says("==0.12.1", "f2b0977e"),),
        C.MEGATRON: (_DOCKER.says("==0.12.*", "core_v0.12.1"),),
        C.TRITON_ASCEND: (_SGLANG.says(">=3.2.0.dev20250925"),),
        C.FLASH_ATTN: (_QUICK.refuses(),),
        C.LIGER_KERNEL: (_QUICK.refuses(),),
    },
    images(
        _NAME,
        ("cann:8.2.rc1-910b-ubuntu22.04-py3.11", "Dockerfile.ascend_8.2.rc1_a2"),
        ("cann:8.2.rc1-a3-ubuntu22.04-py3.11", "Dockerfile.ascend_8.2.rc1_a3"),
    ),
)
