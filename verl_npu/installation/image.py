"""Images: a Dockerfile upon Ascend's base image."""

from __future__ import annotations

from .requirements import constraints, requirements
from .steps import Step, steps
from .target import Arch, Target

__all__ = ["dockerfile"]

_HEAD = """\
# syntax=docker/dockerfile:1.4
# verl {pin} for {npu} on {arch}. Base: verl's own {document}.
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
    """Return a Dockerfile; empty if verl has no base image for this pin and NPU."""
    image = target.image
    if image is None:
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
