"""verl v0.9.0 of 2026-08-14, and v0.9.1, which changes no document, no requirement and no Dockerfile of it."""

from __future__ import annotations

from .claim import A5, SGLANG, VLLM
from .component import Component as C
from .documents import Document, images, pin

__all__ = ["V0_9_0", "V0_9_1"]

_NAME = "v0.9.0"
_START = "docs/ascend_tutorial/get_start"
_GUIDE = Document.of_verl(_NAME, f"{_START}/install_guidance.rst")
_WITH_VLLM = Document.of_verl(_NAME, f"{_START}/install_guidance.rst", VLLM)
_WITH_SGLANG = Document.of_verl(_NAME, f"{_START}/install_guidance.rst", SGLANG)
_A5 = Document.of_verl(_NAME, f"{_START}/install_guidance_A5.rst", npu=A5)
_DOCKER = Document.of_verl(_NAME, f"{_START}/dockerfile_build_guidance.rst", VLLM)
_SCRIPT = Document.of_verl(_NAME, "scripts/install_sglang_mcore_npu.sh", SGLANG)
_REQUIREMENTS = Document.of_verl(_NAME, "requirements-npu.txt")
_SETUP = Document.of_verl(_NAME, "setup.py")
_ENGINE = Document.of_vllm_ascend("v0.23.0")

_CLAIMS = {
    C.PYTHON: (
        _GUIDE.says(">=3.10,<3.12", note="3.11 is recommended"),
        _DOCKER.says("==3.12.*", note="the image is newer than install_guidance.rst"),
    ),
    C.CANN: (
        _WITH_VLLM.says("==9.0.0"),
        _DOCKER.says("==9.1.0", note="the image is newer than install_guidance.rst"),
        _WITH_SGLANG.says(">=8.5.0"),
    ),
    C.DRIVER: (_WITH_VLLM.says("==26.0.rc1"), _WITH_SGLANG.says("==25.5.0")),
    C.TORCH: (_WITH_VLLM.says("==2.10.0"), _WITH_SGLANG.says("==2.8.0")),
    C.TORCH_NPU: (
        _WITH_VLLM.says("==2.10.0.post2"),
        _DOCKER.says("==2.10.0.post4", note="the image is newer than install_guidance.rst"),
        _ENGINE.says("==2.10.0.post4"),
        _WITH_SGLANG.says("==2.8.0.post2"),
    ),
    C.TORCHVISION: (_WITH_VLLM.says("==0.25.0"), _SCRIPT.says("==0.23.0")),
    C.VLLM: (_WITH_VLLM.says("==0.23.0", "v0.23.0"),),
    C.VLLM_ASCEND: (_WITH_VLLM.says("==0.23.*", "releases/v0.23.0", note="the head of a branch"),),
    C.SGLANG: (_WITH_SGLANG.says("==0.5.10", "v0.5.10"),),
    C.TRANSFORMERS: (
        _WITH_VLLM.says("==5.10.4"),
        _SETUP.says(">=5.5.3,!=5.6.0,<5.11"),
        _ENGINE.says("==5.5.4", note="verl's installation script replaces it by 5.10.4"),
        _WITH_SGLANG.says("==5.3.0", note="below what setup.py allows"),
        _A5.says("==4.57.6"),
    ),
    C.TENSORDICT: (_REQUIREMENTS.says(">=0.8.0,<=0.10.0,!=0.9.0"),),
    C.NUMPY: (
        _REQUIREMENTS.says("<2.0.0"),
        _SETUP.says(">=2.0.0", note="contradicts requirements-npu.txt"),
    ),
    C.EINOPS: (_REQUIREMENTS.says(""),),
    C.RAY: (_SETUP.says(">=2.41.0", note="requirements-npu.txt: any version"),),
    C.PEFT: (_REQUIREMENTS.says(">=0.15.2"),),
    C.PYARROW: (_REQUIREMENTS.says(">=15.0.0,<=24.0.0", note="setup.py: >=19.0.0"),),
    C.TRANSFER_QUEUE: (_REQUIREMENTS.says("==0.1.8"),),
    C.MINDSPEED: (
        _GUIDE.says("==0.16.*", "core_r0.16.0"),
        _A5.says("==0.12.*", "0c6c0ceaa523a96032dee1539a52032155e6404e"),
    ),
    C.MEGATRON: (
        _GUIDE.says("==0.16.*", "core_r0.16.0"),
        _A5.says("==0.12.*", "core_r0.12.0"),
    ),
    C.MBRIDGE: (_DOCKER.says("==0.15.1"),),
    C.TRITON: (_GUIDE.says("==3.5.0", note="install_vllm_mcore_npu.sh uninstalls it first"),),
    C.TRITON_ASCEND: (
        _GUIDE.says("==3.2.1"),
        _DOCKER.says("==3.2.2", note="the image is newer than install_guidance.rst"),
        _ENGINE.says("==3.2.2"),
        _A5.says("==3.2.2"),
    ),
    C.FLASH_ATTN: (_GUIDE.refuses(),),
}
_IMAGES = images(
    _NAME,
    ("cann:9.1.0-910b-ubuntu22.04-py3.12", "Dockerfile.ascend_9.1.0_a2"),
    ("cann:9.1.0-a3-ubuntu22.04-py3.12", "Dockerfile.ascend_9.1.0_a3"),
)

V0_9_0 = pin(_NAME, "483b8a009ba3a97563edee3a19887e4862b8094a", _CLAIMS, _IMAGES)
# On the package index only. Upstream's branch release/v0.9.0 has one commit after the tag (885121936), in the source.
V0_9_1 = pin("v0.9.1", "", _CLAIMS, _IMAGES)
