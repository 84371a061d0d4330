"""Packages that must fit each other: a pair that does not is an error even where each alone is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from ..ascend.matrix import Component
from .finding import Finding, error, ok, skipped, warning
from .need import Need
from .package import Package
from .site import Site
from .versions import from_git, install_command

__all__ = ["judge_engine", "judge_megatron", "judge_torch", "judge_triton"]

_C = Component


def judge_torch(site: Site) -> Iterator[Finding]:
    """torch_npu is linked against one PyTorch."""
    name = "torch-pair"
    torch, torch_npu = site.package(_C.TORCH), site.package(_C.TORCH_NPU)
    if torch is None or torch_npu is None or torch.parsed is None or torch_npu.parsed is None:
        yield skipped(name, "torch and torch_npu are not both here")
        return
    mine, theirs = torch.parsed, torch_npu.parsed
    asked = torch_npu.requirement("torch")
    found = f"torch {torch.version} beside torch_npu {torch_npu.version}"
    fix = f"pip install torch=={theirs.base_version} torch_npu=={torch_npu.version}"
    base = Version(mine.base_version)
    if (base.major, base.minor) != (theirs.major, theirs.minor):
        yield error(
            name,
            found,
            needed=f"torch {theirs.major}.{theirs.minor}",
            why="libtorch_npu.so is compiled against one PyTorch: its import ends with `undefined symbol: _ZN…`",
            fix=fix,
        )
    elif base.release != theirs.release or (asked and not asked.specifier.contains(mine, prereleases=True)):
        yield warning(
            name,
            found,
            needed=str(asked) if asked else f"torch {theirs.base_version}",
            why="torch_npu replaces internals of PyTorch that change between its patch releases",
            fix=fix,
        )
    else:
        yield ok(name, found)


def judge_engine(site: Site) -> Iterator[Finding]:
    """vLLM does nothing on NPUs without vllm-ascend, and vllm-ascend nothing without vLLM."""
    name = "engine-pair"
    vllm, ascend = site.package(_C.VLLM), site.package(_C.VLLM_ASCEND)
    if site.virtual:
        yield skipped(name, "not needed on virtual NPUs (SIMULATED)")
    elif vllm is None and ascend is None:
        yield from _without_vllm(site, name)
    elif vllm is None and ascend is not None:
        wanted = _release(ascend.parsed)
        yield error(
            name,
            f"vllm-ascend {ascend} without vllm",
            needed=f"vllm {wanted or 'of the same number'}",
            why="vllm-ascend imports vllm: `No module named 'vllm'`",
            fix=_exchange(site, _C.VLLM, wanted),
        )
    elif ascend is None and vllm is not None:
        wanted = str(Need.of(site, _C.VLLM_ASCEND)) or f"vllm-ascend for vllm {vllm.version}"
        yield warning(
            name,
            f"vllm {vllm} without vllm-ascend",
            needed=wanted,
            why="vLLM itself knows no NPU: a rollout with it ends with `Failed to infer device type`",
            fix=_exchange(site, _C.VLLM_ASCEND, _release(vllm.parsed)),
        )
    elif vllm is not None and ascend is not None:
        yield _judge_engine(site, name, vllm, ascend)


def _without_vllm(site: Site, name: str) -> Iterator[Finding]:
    if site.package(_C.SGLANG) is not None:
        yield ok(name, "SGLang")
    elif site.pin is None:
        yield skipped(name, "no rollout engine; which one is needed follows from the pin")
    else:
        yield warning(
            name,
            "no rollout engine",
            needed=f"vllm {Need.of(site, _C.VLLM)} and vllm-ascend {Need.of(site, _C.VLLM_ASCEND)}",
            why="reinforcement learning generates answers with one; only SFT does without",
            fix=" && ".join(install_command(Need.of(site, part)) for part in (_C.VLLM, _C.VLLM_ASCEND)),
        )


def _judge_engine(site: Site, name: str, vllm: Package, ascend: Package) -> Finding:
    found = f"vllm {vllm} beside vllm-ascend {ascend}"
    if vllm.parsed is None or ascend.parsed is None or vllm.parsed.release[:2] == ascend.parsed.release[:2]:
        return ok(name, found)
    return warning(
        name,
        found,
        needed="both of the same number",
        why="vllm-ascend changes vLLM's own classes; where they differ, its start ends with an ImportError or worse",
        fix=_exchange(site, *_wrong_one(site, vllm.parsed, ascend.parsed)),
    )


def _wrong_one(site: Site, vllm: Version, ascend: Version) -> tuple[Component, str]:
    """Return which of the two to exchange, and the number that it needs: the one that is not the pin's."""
    if site.pin is not None and Need.of(site, _C.VLLM).met_by(vllm):
        return _C.VLLM_ASCEND, _release(vllm)
    return _C.VLLM, _release(ascend)


def _exchange(site: Site, part: Component, release: str) -> str:
    """From source, as all documents do: vLLM's wheel would bring a PyTorch for CUDA."""
    need = Need.of(site, part)
    return install_command(need) if need.supported else from_git(part, f"v{release}" if release else "main")


def judge_megatron(site: Site) -> Iterator[Finding]:
    """MindSpeed changes Megatron for NPUs; without Megatron its import leaves PyTorch changed half-way."""
    name = "megatron-pair"
    megatron, mindspeed = site.package(_C.MEGATRON), site.package(_C.MINDSPEED)
    if megatron is None and mindspeed is None:
        yield skipped(name, "neither is installed; FSDP does without")
    elif megatron is None:
        yield warning(
            name,
            f"MindSpeed {mindspeed} without Megatron",
            needed=f"megatron-core {Need.of(site, _C.MEGATRON)}",
            why="`import mindspeed.megatron_adaptor` fails, and PyTorch stays changed in that process",
            fix="export PYTHONPATH=$PYTHONPATH:/path/to/Megatron-LM  # or: pip install -e Megatron-LM",
        )
    elif mindspeed is None:
        yield warning(
            name,
            f"megatron-core {megatron} without MindSpeed",
            needed=f"mindspeed {Need.of(site, _C.MINDSPEED)}",
            why="Megatron itself is written for CUDA; verl's Megatron backend needs MindSpeed on NPUs",
            fix="git clone https://gitcode.com/Ascend/MindSpeed.git && pip install -e MindSpeed",
        )
    else:
        yield _judge_megatron(name, megatron, mindspeed)


def _judge_megatron(name: str, megatron: Package, mindspeed: Package) -> Finding:
    found = f"megatron-core {megatron} beside MindSpeed {mindspeed}"
    mine, theirs = megatron.parsed, mindspeed.parsed
    if mine is None or theirs is None or mine.release[:2] == theirs.release[:2]:
        return ok(name, found)
    return warning(
        name,
        found,
        needed=f"Megatron {theirs.major}.{theirs.minor}, which this MindSpeed is for",
        why="MindSpeed replaces Megatron's functions by name: where these differ, training fails or is silently wrong",
        fix=f"git -C Megatron-LM checkout core_{'v' if theirs.minor < 13 else 'r'}{theirs.base_version}",
    )


def judge_triton(site: Site) -> Iterator[Finding]:
    """Both are the package `triton`: the one that was installed last has overwritten the other's files."""
    triton, ascend = site.package(_C.TRITON), site.package(_C.TRITON_ASCEND)
    if triton is None:
        yield skipped("triton", "not installed")
        return
    need = Need.of(site, _C.TRITON)
    again = Need.of(site, _C.TRITON_ASCEND).exact or (ascend.version if ascend else "")
    fix = f"pip uninstall -y triton triton-ascend && pip install triton-ascend{f'=={again}' if again else ''}"
    if site.virtual or (ascend is None and not (site.is_ascend and need.claims)):
        yield skipped("triton", f"{triton}, not beside triton-ascend")
    elif ascend is not None and not _has_backend(ascend):
        yield error(
            "triton",
            f"{triton} has overwritten triton-ascend {ascend}",
            needed="triton-ascend whole: triton/backends/ascend is not there",
            why="kernels written in Triton end with `0 active drivers` without it",
            fix=fix,
        )
    elif need.supported and triton.parsed is not None and need.met_by(triton.parsed):
        yield ok("triton", f"{triton}, as the documents of {need.pin} name it")
    elif ascend is not None:
        yield warning(
            "triton",
            f"{triton} beside triton-ascend {ascend}",
            needed=str(need) or "triton-ascend alone",
            why="both install the folder triton, and one has overwritten files of the other",
            fix=fix,
        )
    else:
        yield warning(
            "triton",
            f"{triton} without triton-ascend",
            needed=str(Need.of(site, _C.TRITON_ASCEND)) or "triton-ascend",
            why="this triton is for CUDA: kernels written in Triton find no driver on NPUs",
            fix=fix,
        )


def _has_backend(package: Package) -> bool:
    folder = Path(package.folder) / "triton"
    return not folder.is_dir() or (folder / "backends" / "ascend").is_dir()


def _release(version: Version | None) -> str:
    return ".".join(map(str, version.release)) if version is not None else ""
