"""verl v0.7.0 of 2026-01-05, and ccd7d934, which is two weeks older and says the same about versions."""

from __future__ import annotations

from .claim import SGLANG, Pin
from .component import Component as C
from .documents import Document, images, pin

__all__ = ["CCD7D934", "V0_7_0"]

_TUTORIAL = "docs/ascend_tutorial"


def _pin(name: str, commit: str) -> Pin:
    quick = Document.of_verl(name, f"{_TUTORIAL}/ascend_quick_start.rst")
    docker = Document.of_verl(name, f"{_TUTORIAL}/dockerfile_build_guidance.rst")
    sglang = Document.of_verl(name, f"{_TUTORIAL}/ascend_sglang_quick_start.rst", SGLANG)
    requirements = Document.of_verl(name, "requirements-npu.txt")
    setup = Document.of_verl(name, "setup.py")
    claims = {
        C.PYTHON: (quick.says(">=3.10,<3.12"), docker.says("==3.11.*"), sglang.says("==3.11.*")),
        C.CANN: (quick.says("==8.3.RC1"), sglang.says("==8.3.RC1")),
        C.DRIVER: (sglang.says("==25.3.RC1"),),
        C.TORCH: (quick.says("==2.7.1"), sglang.says("==2.6.0")),
        C.TORCH_NPU: (quick.says("==2.7.1"), sglang.says("==2.6.0")),
        C.TORCHVISION: (quick.says("==0.22.1"),),
        C.VLLM: (quick.says("==0.11.0", "v0.11.0"),),
        C.VLLM_ASCEND: (quick.says("==0.11.0rc1", "v0.11.0rc1"),),
        C.SGLANG: (sglang.says("", note="from git; no revision is named"),),
        C.TRANSFORMERS: (
            quick.says("<5", note="'latest release', which was 4.57 when this was written"),
            sglang.says("==4.56.1"),
        ),
        C.TENSORDICT: (requirements.says(">=0.8.0,<=0.10.0,!=0.9.0"),),
        C.NUMPY: (requirements.says("<2.0.0"), setup.says("<2.0.0")),
        C.EINOPS: (requirements.says(""),),
        C.RAY: (setup.says(">=2.41.0", note="requirements-npu.txt: any version"),),
        C.PEFT: (requirements.says(">=0.15.2"),),
        C.PYARROW: (setup.says(">=19.0.0", note="requirements-npu.txt: >=15.0.0"),),
        C.MINDSPEED: (quick.says("==0.12.1", "f2b0977e"),),
        C.MEGATRON: (quick.says("==0.12.*", "core_v0.12.1"),),
        C.MBRIDGE: (quick.says(""), docker.says("", note="'latest version'")),
        C.TRITON: (quick.refuses(note="'triton need not be installed', and is uninstalled first"),),
        C.TRITON_ASCEND: (requirements.says("==3.2.0rc4"), sglang.says(">=3.2.0.dev20250925")),
        C.FLASH_ATTN: (quick.refuses(),),
        C.LIGER_KERNEL: (quick.refuses(),),
    }
    built = images(
        name,
        ("cann:8.3.rc1-910b-ubuntu22.04-py3.11", "Dockerfile.ascend_8.3.rc1_a2"),
        ("cann:8.3.rc1-a3-ubuntu22.04-py3.11", "Dockerfile.ascend_8.3.rc1_a3"),
    )
    return pin(name, commit, claims, built)


CCD7D934 = _pin("ccd7d934", "ccd7d934f91be98bb3732c78bd1870fa39c399ad")
V0_7_0 = _pin("v0.7.0", "f9c855f7cf04d603c9546bc01776c74806a879c1")
