"""verl 796871d7 of 2025-08-05."""

from __future__ import annotations

from .component import Component as C
from .documents import Document, pin

__all__ = ["V796871D7"]

_NAME = "796871d7"
_QUICK = Document.of_verl(_NAME, "docs/ascend_tutorial/ascend_quick_start.rst")
_REQUIREMENTS = Document.of_verl(_NAME, "requirements-npu.txt")
_SETUP = Document.of_verl(_NAME, "setup.py")
_CI = Document.of_verl(_NAME, ".github/workflows/e2e_ascend.yml")
_ENGINE = Document.of_vllm_ascend("v0.7.3.post1")

V796871D7 = pin(
    _NAME,
    "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e",
    {
        C.PYTHON: (_QUICK.says("==3.10.*"),),
        C.CANN: (_QUICK.says("==8.1.RC1"),),
        C.TORCH: (_QUICK.says("==2.5.1"),),
        C.TORCH_NPU: (
            _QUICK.says("==2.5.1.RC1"),
            _ENGINE.says("==2.5.1", note="vllm-ascend pins the release after it"),
        ),
        C.TORCHVISION: (_REQUIREMENTS.says("==0.20.1"),),
        C.VLLM: (_QUICK.says("==0.7.3", "v0.7.3"),),
        C.VLLM_ASCEND: (_QUICK.says("==0.7.3.post1", "v0.7.3.post1"),),
        C.TRANSFORMERS: (_REQUIREMENTS.says("==4.52.4"), _QUICK.says("==4.52.4")),
        C.TENSORDICT: (
            _REQUIREMENTS.says(">=0.8.0,<=0.9.1,!=0.9.0"),
            _QUICK.says("==0.8.3", note="for servers with ARM processors"),
        ),
        C.NUMPY: (_REQUIREMENTS.says("<2.0.0"), _SETUP.says("<2.0.0")),
        C.EINOPS: (_REQUIREMENTS.says(""),),
        C.RAY: (_REQUIREMENTS.says("==2.46.0", note="setup.py: >=2.41.0"),),
        C.PEFT: (_REQUIREMENTS.says(""),),
        C.PYARROW: (_SETUP.says(">=19.0.0", note="requirements-npu.txt: >=15.0.0"),),
        C.MINDSPEED: (_CI.says("==0.12.1", note="the tag of CI's image is mindspeed0121"),),
        C.FLASH_ATTN: (_QUICK.refuses(),),
        C.LIGER_KERNEL: (_QUICK.refuses(),),
    },
)
