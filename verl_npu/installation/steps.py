"""The commands that install an environment, in order, and what goes wrong without each.

The addresses of package indexes are the user's: TORCH_CPU_INDEX is the one that pytorch.org names for CPUs, and
TRITON_ASCEND_INDEX the one of triton-ascend's documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ascend.matrix import Component
from .target import Arch, Npu, Target

__all__ = ["Step", "steps"]

_KEPT = "torch|torch_npu|torch-npu|torchvision|torchaudio|transformers|triton|triton-ascend|numpy|xformers"
"""What requirements of engines name, and constraints decide."""


@dataclass(frozen=True, slots=True)
class Step:
    """Commands that belong together."""

    title: str
    commands: tuple[str, ...]
    traps: tuple[str, ...] = ()
    """What goes wrong if it is left out or done otherwise."""
    on_host: bool = False
    """A base image has it done already."""


def steps(target: Target) -> tuple[Step, ...]:
    """Return all steps for an environment."""
    made = (
        _platform(target),
        _python(target),
        _torch(target),
        *_triton(target),
        _verl_requirements(target),
        _vllm(target),
        _vllm_ascend(target),
        *_megatron(target),
        _verl(target),
        _judged(target),
    )
    return tuple(step for step in made if not (target.in_image and step.on_host))


def _platform(target: Target) -> Step:
    cann, driver = target.specifier(Component.CANN), target.specifier(Component.DRIVER)
    hdk = f"driver and firmware {driver.removeprefix('==')}, " if driver else "driver and firmware, "
    return Step(
        f"The platform: {hdk}CANN {cann.removeprefix('==')}: toolkit, kernels for {target.npu.kernels}, and nnal",
        (
            "npu-smi info",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
            "source /usr/local/Ascend/nnal/atb/set_env.sh",
        ),
        (
            "toolkit, kernels and nnal are of one version; kernels of another NPU fail with 561003",
            "without set_env.sh in this shell `import torch` fails with libhccl.so, and without nnal's with libatb.so",
            "set_env.sh also has to be sourced on each host before `ray start`",
        ),
        on_host=True,
    )


def _python(target: Target) -> Step:
    return Step(
        f"An environment with Python {target.python}",
        (f"python{target.python} -m venv verl-npu-env", "source verl-npu-env/bin/activate"),
        on_host=True,
    )


def _torch(target: Target) -> Step:
    named = [
        f'"{each.value}{target.specifier(each)}"'
        for each in (Component.TORCH, Component.TORCHVISION)
        if target.claim(each) is not None
    ]
    x86 = target.arch is Arch.X86
    index = ' --index-url "$TORCH_CPU_INDEX"' if x86 else ""
    traps = ["PIP_CONSTRAINT keeps what is installed later from replacing torch"]
    if x86:
        traps.append(
            "on x86 the package index's torch is a build for CUDA, beside which torch_npu does not load: take +cpu "
            "from "
            "the index that pytorch.org names for CPUs (TORCH_CPU_INDEX)"
        )
    return Step(
        "torch for CPUs, and torch_npu of the same release",
        (
            'export PIP_CONSTRAINT="$PWD/constraints.txt"',
            *(('export PIP_EXTRA_INDEX_URL="$TORCH_CPU_INDEX"',) if x86 else ()),
            f"pip install {' '.join(named)}{index}",
            f'pip install "torch-npu{target.specifier(Component.TORCH_NPU)}" pyyaml setuptools',
        ),
        tuple(traps),
    )


def _triton(target: Target) -> Iterator[Step]:
    if target.claim(Component.TRITON_ASCEND) is None:
        return
    needs = target.specifier(Component.TRITON_ASCEND)
    index = "${TRITON_ASCEND_INDEX:+--extra-index-url $TRITON_ASCEND_INDEX}"
    yield Step(
        "triton-ascend in the place of triton",
        ("pip uninstall -y triton triton-ascend", f'pip install "triton-ascend{needs}" {index}'),
        (
            "both own the folder triton: whatever installs triton later breaks it (`0 active drivers`); then repeat "
            "this",
            "builds that the package index does not have are in the index of triton-ascend's documents",
        ),
    )


def _verl_requirements(target: Target) -> Step:
    refused = [each.value for each in (Component.FLASH_ATTN, Component.LIGER_KERNEL) if target.refused(each)]
    traps = ["einops is needed on NPUs, and several releases of verl do not ask for it"]
    if refused:
        traps.append(f"never install {' or '.join(refused)}: verl's documents say that they do not work on NPUs")
    return Step("What verl needs beside them", ("pip install -r requirements.txt",), tuple(traps))


def _vllm(target: Target) -> Step:
    claim = target.claim(Component.VLLM)
    revision = claim.revision if claim else ""
    return Step(
        f"vLLM {revision} without its kernels",
        (
            f"git clone --depth 1 --branch {revision} https://github.com/vllm-project/vllm",
            "pip install setuptools-scm cmake ninja packaging wheel jinja2",
            "(cat vllm/requirements/common.txt 2>/dev/null || cat vllm/requirements-common.txt) | "
            f"grep -viE '^({_KEPT})\\b' > vllm-requirements.txt",
            "pip install -r vllm-requirements.txt",
            "VLLM_TARGET_DEVICE=empty pip install --no-build-isolation --no-deps -e ./vllm",
        ),
        (
            "a wheel of vLLM from the package index brings torch with CUDA",
            "with build isolation pip fetches another torch to build with",
            "its requirements on torch contradict vllm-ascend's (ResolutionImpossible): they are left out, "
            "constraints decide",
            "it then calls itself X+empty, which verl ccd7d934 and v0.7.0 misread; verl-npu mends that",
        ),
    )


def _vllm_ascend(target: Target) -> Step:
    claim = target.claim(Component.VLLM_ASCEND)
    revision = claim.revision if claim else ""
    traps = ["without COMPILE_CUSTOM_KERNELS=1 it cannot sleep (`camem allocator is not available`)"]
    if target.npu is Npu.A3:
        traps.append("its wheels on the package index are built for A2: on A3 it must be built from source")
    return Step(
        f"vllm-ascend {revision}, compiled for {target.npu.value.upper()}",
        (
            f"git clone --depth 1 --recurse-submodules --branch {revision} "
            f"https://github.com/vllm-project/vllm-ascend",
            f"grep -viE '^({_KEPT})\\b' vllm-ascend/requirements.txt > vllm-ascend-requirements.txt",
            "pip install -r vllm-ascend-requirements.txt",
            f"SOC_VERSION={target.npu.soc} COMPILE_CUSTOM_KERNELS=1 pip install --no-build-isolation --no-deps "
            "-e ./vllm-ascend",
        ),
        tuple(traps),
    )


def _megatron(target: Target) -> Iterator[Step]:
    mindspeed, megatron = target.claim(Component.MINDSPEED), target.claim(Component.MEGATRON)
    if not (mindspeed and mindspeed.revision and megatron and megatron.revision):
        return
    commands = [
        "git clone https://gitcode.com/Ascend/MindSpeed",
        f"git -C MindSpeed checkout {mindspeed.revision}",
        f"git clone --depth 1 --branch {megatron.revision} https://github.com/NVIDIA/Megatron-LM",
        "pip install --no-build-isolation --no-deps -e ./MindSpeed",
        'export PYTHONPATH="$PWD/Megatron-LM:$PYTHONPATH"',
    ]
    if target.claim(Component.MBRIDGE) is not None:
        commands.append(f'pip install --no-deps "mbridge{target.specifier(Component.MBRIDGE)}"')
    yield Step(
        "MindSpeed and Megatron-LM, for the Megatron backend only",
        tuple(commands),
        (
            "other revisions have other overrides: `verl-npu mindspeed --check` tells before the job starts",
            "PYTHONPATH has to be set on each host before `ray start`",
        ),
    )


def _verl(target: Target) -> Step:
    commands: tuple[str, ...]
    if target.pin.commit:
        commands = (
            "git clone https://github.com/verl-project/verl",
            f"git -C verl checkout {target.pin.commit}",
            "pip install --no-deps -e ./verl",
        )
    else:
        commands = (f'pip install --no-deps "verl=={target.pin.name.removeprefix("v")}"',)
    return Step(
        f"verl {target.pin.name} and verl-npu",
        (*commands, "pip install verl-npu"),
        ("with its dependencies verl's own setup would replace numpy or tensordict",),
    )


def _judged(target: Target) -> Step:
    # While an image is built there is no NPU to look at.
    judged = () if target.in_image else (f"verl-npu doctor --pin {target.pin.name} --level import",)
    return Step("The verdict", ("verl-npu check", *judged))
