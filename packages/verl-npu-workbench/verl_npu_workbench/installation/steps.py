"""The commands that install an environment, in order, and what goes wrong without each; the files for pip; images.

The addresses of package indexes are the user's: TORCH_CPU_INDEX is the one that pytorch.org names for CPUs, and
TRITON_ASCEND_INDEX the one of triton-ascend's documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..pins import Component, is_commit
from .target import Arch, Npu, Target

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
            *_clone("https://github.com/vllm-project/vllm", revision),
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
    if claim and claim.note and not is_commit(revision):
        traps.append(claim.note)
    return Step(
        f"vllm-ascend {revision}, compiled for {target.npu.value.upper()}",
        (
            *_clone("https://github.com/vllm-project/vllm-ascend", revision, submodules=True),
            f"grep -viE '^({_KEPT})\\b' vllm-ascend/requirements.txt > vllm-ascend-requirements.txt",
            "pip install -r vllm-ascend-requirements.txt",
            f"SOC_VERSION={target.npu.soc} COMPILE_CUSTOM_KERNELS=1 pip install --no-build-isolation --no-deps "
            "-e ./vllm-ascend",
        ),
        tuple(traps),
    )


def _clone(url: str, revision: str, *, submodules: bool = False) -> tuple[str, ...]:
    """The commands that get a source: of a branch or tag only what it needs, and for a commit all of it."""
    if not is_commit(revision):
        deep = "--recurse-submodules " if submodules else ""
        return (f"git clone --depth 1 {deep}--branch {revision} {url}",)
    folder = url.rpartition("/")[2]
    inner = (f"git -C {folder} submodule update --init --recursive",) if submodules else ()
    return (f"git clone {url}", f"git -C {folder} checkout {revision}", *inner)


def _megatron(target: Target) -> Iterator[Step]:
    mindspeed, megatron = target.claim(Component.MINDSPEED), target.claim(Component.MEGATRON)
    if not (mindspeed and mindspeed.revision and megatron and megatron.revision):
        return
    commands = [
        "git clone https://gitcode.com/Ascend/MindSpeed",
        f"git -C MindSpeed checkout {mindspeed.revision}",
        f"git clone --depth 1 --branch {megatron.revision} https://github.com/NVIDIA/Megatron-LM",
        f"grep -viE '^({_KEPT})\\b' MindSpeed/requirements.txt > mindspeed-requirements.txt",
        "pip install -r mindspeed-requirements.txt",
        "pip install --no-build-isolation --no-deps -e ./MindSpeed",
        'export PYTHONPATH="$PWD/Megatron-LM:$PYTHONPATH"',
    ]
    if target.claim(Component.MBRIDGE) is not None:
        commands.append(f'pip install --no-deps "mbridge{target.specifier(Component.MBRIDGE)}"')
    yield Step(
        "MindSpeed and Megatron-LM, for the Megatron backend only",
        tuple(commands),
        (
            "without scipy, which its requirements name, context_parallel_size above 1 fails",
            "other revisions have other overrides: `verl-npu lint --overrides` tells before the job starts",
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
        (*commands, "pip install ./verl_npu*.whl"),
        (
            "with its dependencies verl's own setup would replace numpy or tensordict",
            "verl-npu is in no package index: "
            "`pip wheel --no-deps CHECKOUT CHECKOUT/packages/verl-npu-workbench` makes its wheels in this folder",
        ),
    )


def _judged(target: Target) -> Step:
    # While an image is built there is no NPU to look at.
    judged = () if target.in_image else (f"verl-npu doctor --pin {target.pin.name} --level import",)
    return Step("The verdict", ("verl-npu check", *judged))


_OTHERS = (
    "accelerate",
    "codetiming",
    "datasets",
    "dill",
    "hydra-core",
    "mathruler",
    "pandas",
    "pybind11",
    "pylatexenc",
    "qwen_vl_utils",
    "torchdata",
    "wandb",
)
"""What requirements-npu.txt of all pins names without a version."""
_OURS = (
    Component.TRANSFORMERS,
    Component.TENSORDICT,
    Component.NUMPY,
    Component.EINOPS,
    Component.PEFT,
    Component.PYARROW,
)
_CONSTRAINED = (
    Component.TORCH,
    Component.TORCH_NPU,
    Component.TORCHVISION,
    *_OURS,
    Component.RAY,
    Component.TRITON_ASCEND,
)


def requirements(target: Target) -> str:
    """Return what verl needs beside torch, torch_npu and the engine, as a requirements file."""
    lines = [f"# What verl {target.name} needs on NPUs, from its requirements-npu.txt and documents."]
    lines += sorted(
        [
            *(_asked(target, each) for each in _OURS),
            f"ray[default]{target.specifier(Component.RAY)}",
            *_OTHERS,
        ]
    )
    queue = target.claim(Component.TRANSFER_QUEUE)
    if queue is not None and queue.needs:
        lines.append(f"TransferQueue{queue.needs}")
    elif queue is not None:
        lines.append(f"TransferQueue @ git+https://github.com/Ascend/TransferQueue.git@{queue.revision}")
    return "\n".join(lines) + "\n"


def _asked(target: Target, component: Component) -> str:
    claim = target.claim(component)
    if component is Component.TRANSFORMERS and claim is not None and is_commit(claim.revision):
        return f"transformers @ git+https://github.com/huggingface/transformers@{claim.revision}"
    return f"{component.value}{target.specifier(component)}"


def constraints(target: Target) -> str:
    """Return the versions that no later installation may replace, as a constraints file.

    torch first of all: requirements of vLLM and of others ask for builds with CUDA.
    """
    lines = [f"# Versions of verl {target.name} on NPUs. PIP_CONSTRAINT makes pip keep them."]
    if target.arch is Arch.X86:
        lines.append("# +cpu: on x86 the plain name of torch is a build for CUDA.")
    for component in _CONSTRAINED:
        needs = target.specifier(component)
        claim = target.claim(component)
        if needs and claim is not None:
            lines.append(f"{component.value}{needs}  # {claim.source}")
    return "\n".join(lines) + "\n"


_HEAD = """\
# syntax=docker/dockerfile:1.4
# verl {pin} for {npu} on {arch}. Base: verl's own {document}.
# pip wheel --no-deps CHECKOUT CHECKOUT/packages/verl-npu-workbench
# docker build --build-arg REGISTRY=… {index}-t {tag} -f {name} .
# REGISTRY: where you get Ascend's images from. {index_note}
ARG REGISTRY
FROM ${{REGISTRY}}/{base}
ARG TORCH_CPU_INDEX=""
ARG TRITON_ASCEND_INDEX=""
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
WORKDIR /opt/verl-npu
RUN apt-get update -y \\
    && apt-get install -y --no-install-recommends gcc g++ cmake libnuma-dev wget git curl jq \\
    && rm -rf /var/lib/apt/lists/*
"""
_ENVIRONMENT = (
    "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
    "source /usr/local/Ascend/nnal/atb/set_env.sh",
    # While an image is built there is no driver; CANN has stubs of its libraries.
    'export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/$(uname -m)-linux/devlib/linux/$(uname -m):$LD_LIBRARY_PATH"',
    'export PIP_CONSTRAINT="$PWD/constraints.txt"',
)


def dockerfile(target: Target) -> str:
    """Return a Dockerfile; empty if there is nothing to build: verl has no base image, or it is published whole."""
    image = target.image
    if image is None or target.environment.published:
        return ""
    x86 = target.arch is Arch.X86
    text = _HEAD.format(
        pin=target.pin.name,
        npu=target.npu.value.upper(),
        arch=target.arch.value,
        document=image.source.document,
        index="--build-arg TORCH_CPU_INDEX=… " if x86 else "",
        index_note="TORCH_CPU_INDEX: what pytorch.org names for CPUs." if x86 else "",
        tag=target.tag,
        name=f"Dockerfile.{target.npu.value}",
        base=image.base,
    )
    text += _file("requirements.txt", requirements(target)) + _file("constraints.txt", constraints(target))
    text += "COPY verl_npu*.whl ./\n"
    text += "".join(_layer(step) for step in steps(target))
    if "Megatron-LM" in text:
        text += 'ENV PYTHONPATH="/opt/verl-npu/Megatron-LM"\n'
    return text + 'CMD ["/bin/bash"]\n'


def _file(name: str, content: str) -> str:
    return f"COPY <<'EOF' {name}\n{content}EOF\n"


def _layer(step: Step) -> str:
    # A line per command, joined: what one exports the next has.
    commands = [command for command in (*_ENVIRONMENT, *step.commands) if not command.startswith("export PYTHONPATH")]
    commands = list(dict.fromkeys(commands))
    return f"# {step.title}.\nRUN " + " \\\n    && ".join(commands) + "\n"
