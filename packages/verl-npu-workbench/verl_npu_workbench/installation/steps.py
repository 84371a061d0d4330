"""The commands that install an environment, in order and with notes on common mistakes; the files for pip; and
Dockerfiles.

The user supplies the addresses of two package indexes. TORCH_CPU_INDEX is the index that pytorch.org names for CPU
builds, and TRITON_ASCEND_INDEX is the index in triton-ascend's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..pins import Component, is_commit
from .target import Arch, Npu, Target

_KEPT = "torch|torch_npu|torch-npu|torchvision|torchaudio|transformers|triton|triton-ascend|numpy|xformers"
"""The packages that the rollout engines require, but whose versions come from the constraints file."""


_JEMALLOC = "libjemalloc.so.2"
_PRELOAD = "export LD_PRELOAD="


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an installation: commands that belong together."""

    title: str
    commands: tuple[str, ...]
    traps: tuple[str, ...] = ()
    """The mistakes to avoid, and their consequences."""
    on_host: bool = False
    """True if this step has already been done in the base image."""


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
        *_jemalloc(target),
        _verl(target),
        _judged(target),
    )
    return tuple(step for step in made if not (target.in_image and step.on_host))


def _platform(target: Target) -> Step:
    cann, driver = target.specifier(Component.CANN), target.specifier(Component.DRIVER)
    hdk = f"driver and firmware {driver.removeprefix('==')}, " if driver else "driver and firmware, "
    return Step(
        f"The platform: {hdk}CANN {cann.removeprefix('==')} with toolkit, kernels for {target.npu.kernels}, and nnal",
        (
            "npu-smi info",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
            "source /usr/local/Ascend/nnal/atb/set_env.sh",
        ),
        (
            "toolkit, kernels, and nnal must have the same version; kernels for another NPU fail with 561003",
            "without CANN's set_env.sh in this shell, `import torch` fails with libhccl.so; without nnal's, with "
            "libatb.so",
            "set_env.sh must also be sourced on each host before `ray start`",
            *(
                ("verl's page about this NPU names neither CANN nor torch_npu: these are the versions for A2 and A3",)
                if target.npu is Npu.A5
                else ()
            ),
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
    traps = ["without PIP_CONSTRAINT, later installations replace torch"]
    if x86:
        traps.append(
            "on x86, the package index's torch is a CUDA build, and torch_npu does not load with it: use the "
            "+cpu build from the index that pytorch.org names for CPUs (TORCH_CPU_INDEX)"
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
        "triton-ascend instead of triton",
        ("pip uninstall -y triton triton-ascend", f'pip install "triton-ascend{needs}" {index}'),
        (
            "triton and triton-ascend install files into the same folder: if triton is installed later, triton-ascend "
            "breaks (`0 active drivers`); then repeat this step",
            "builds that the package index lacks are in the index that triton-ascend's documentation names",
        ),
    )


def _verl_requirements(target: Target) -> Step:
    refused = [each.value for each in (Component.FLASH_ATTN, Component.LIGER_KERNEL) if target.refused(each)]
    traps = ["einops is needed on NPUs, but several releases of verl do not list it"]
    if refused:
        traps.append(f"never install {' or '.join(refused)}: verl's documentation says that they do not work on NPUs")
    return Step("verl's other requirements", ("pip install -r requirements.txt",), tuple(traps))


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
            "vLLM's wheel from the package index installs a CUDA build of torch",
            "with build isolation, pip downloads another torch for the build",
            "vLLM's requirement on torch contradicts vllm-ascend's (ResolutionImpossible): it is left out here, and "
            "the constraints decide",
            "the version is then X+empty, which verl ccd7d934 and v0.7.0 misread; verl-npu fixes that",
        ),
    )


def _vllm_ascend(target: Target) -> Step:
    claim = target.claim(Component.VLLM_ASCEND)
    revision = claim.revision if claim else ""
    traps = ["without COMPILE_CUSTOM_KERNELS=1 it cannot sleep (`camem allocator is not available`)"]
    if target.npu is not Npu.A2:
        name = target.npu.value.upper()
        traps.append(f"its wheels on the package index are built for A2; for {name} it must be built from source")
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
    """Return the commands that clone a repository. A branch or a tag is cloned shallowly; a commit needs the full
    history."""
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
            "without scipy, which MindSpeed's requirements name, context_parallel_size above 1 fails",
            "other revisions have other overrides; `verl-npu lint --overrides` checks yours before the job starts",
            "PYTHONPATH must be set on each host before `ray start`",
        ),
    )


def _jemalloc(target: Target) -> Iterator[Step]:
    if target.jemalloc:
        yield Step(
            "jemalloc, which returns the memory of Ray's processes to the host",
            (
                "apt-get update -y && apt-get install -y libjemalloc2",
                # With -q, grep ends early, and pipefail makes the end of ldconfig an error.
                f"ldconfig -p | grep {_JEMALLOC} > /dev/null && {_PRELOAD}{_JEMALLOC}",
            ),
            (
                "with yum, the package is called jemalloc",
                "LD_PRELOAD must be set on each host before `ray start`, as `verl-npu launch --jemalloc` does; with a "
                "library that does not exist, each program prints an error of ld.so",
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
            "without --no-deps, verl's own setup would replace numpy or tensordict",
            "verl-npu is in no package index: "
            "`pip wheel --no-deps CHECKOUT CHECKOUT/packages/verl-npu-workbench` builds its wheels in this folder",
        ),
    )


def _judged(target: Target) -> Step:
    # There is no NPU to examine while an image is built.
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
"""The packages that requirements-npu.txt lists without a version at all pins."""
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
    """Return a requirements file that lists verl's requirements, except torch, torch_npu, and the engine."""
    lines = [f"# Requirements of verl {target.name} on NPUs, from its requirements-npu.txt and documents."]
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
    """Return a pip constraints file that pins the versions that later installation steps must not replace.

    This matters most for torch, because vLLM and other packages require CUDA builds of torch.
    """
    lines = [f"# Versions of verl {target.name} on NPUs. PIP_CONSTRAINT makes pip keep them."]
    if target.arch is Arch.X86:
        lines.append("# +cpu: on x86, torch without it is a CUDA build.")
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
# REGISTRY: the registry from which you pull Ascend's images. {index_note}
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
    # There is no driver while an image is built; CANN has stubs of its libraries.
    'export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/$(uname -m)-linux/devlib/linux/$(uname -m):$LD_LIBRARY_PATH"',
    'export PIP_CONSTRAINT="$PWD/constraints.txt"',
)


def dockerfile(target: Target) -> str:
    """Return a Dockerfile, or an empty string if verl has no base image for the target, or if a complete image is
    published."""
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
        index_note="TORCH_CPU_INDEX: the index that pytorch.org names for CPUs." if x86 else "",
        tag=target.tag,
        name=f"Dockerfile.{target.npu.value}",
        base=image.base,
    )
    text += _file("requirements.txt", requirements(target)) + _file("constraints.txt", constraints(target))
    text += "COPY verl_npu*.whl ./\n"
    text += "".join(_layer(step) for step in steps(target))
    if "Megatron-LM" in text:
        text += 'ENV PYTHONPATH="/opt/verl-npu/Megatron-LM"\n'
    if target.jemalloc:
        text += f"ENV LD_PRELOAD={_JEMALLOC}\n"
    return text + 'CMD ["/bin/bash"]\n'


def _file(name: str, content: str) -> str:
    return f"COPY <<'EOF' {name}\n{content}EOF\n"


def _layer(step: Step) -> str:
    # One RUN for all commands, so that each sees the exports of those before.
    commands = [command for command in (*_ENVIRONMENT, *step.commands) if not command.startswith("export PYTHONPATH")]
    commands = list(dict.fromkeys(commands))
    return f"# {step.title}.\nRUN " + " \\\n    && ".join(commands) + "\n"
