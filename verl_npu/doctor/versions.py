"""The versions of the Python packages, compared with what the documents of the pin name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..ascend.matrix import Claim, Component
from .clashes import Judgement, clash_with
from .finding import Finding, Verdict, error, ok, skipped, warning
from .need import Need
from .package import Package
from .site import Site

__all__ = ["COMPARED", "from_git", "install_command", "judge_versions"]

_C = Component

COMPARED = (
    _C.TORCH,
    _C.TORCH_NPU,
    _C.TORCHVISION,
    _C.VLLM,
    _C.VLLM_ASCEND,
    _C.SGLANG,
    _C.TRANSFORMERS,
    _C.TENSORDICT,
    _C.NUMPY,
    _C.EINOPS,
    _C.RAY,
    _C.PEFT,
    _C.PYARROW,
    _C.TRANSFER_QUEUE,
    _C.MINDSPEED,
    _C.MEGATRON,
    _C.MBRIDGE,
    _C.TRITON_ASCEND,
    _C.FLASH_ATTN,
    _C.LIGER_KERNEL,
)
"""The packages that are compared one by one; triton is judged beside triton-ascend."""

_OF_NPUS = frozenset({_C.TORCH, _C.TORCH_NPU, _C.TORCHVISION, _C.VLLM, _C.VLLM_ASCEND, _C.SGLANG, _C.TRITON_ASCEND})
"""Parts that follow from torch_npu, whose place virtual NPUs take."""

_GIT = {
    _C.VLLM: "https://github.com/vllm-project/vllm.git",
    _C.VLLM_ASCEND: "https://github.com/vllm-project/vllm-ascend.git",
    _C.SGLANG: "https://github.com/sgl-project/sglang.git",
    _C.MINDSPEED: "https://gitcode.com/Ascend/MindSpeed.git",
    _C.MEGATRON: "https://github.com/NVIDIA/Megatron-LM.git",
    _C.TRANSFER_QUEUE: "https://github.com/Ascend/TransferQueue.git",
}


@dataclass(frozen=True, slots=True)
class _Absence:
    verdict: Verdict
    why: str


_NEEDED: Mapping[Component, _Absence] = {
    _C.TORCH: _Absence(Verdict.ERROR, "verl and everything below it is written for PyTorch"),
    _C.TORCH_NPU: _Absence(Verdict.ERROR, "without it PyTorch knows no device `npu`, and verl finds none"),
    _C.TRANSFORMERS: _Absence(Verdict.ERROR, "verl imports it"),
    _C.TENSORDICT: _Absence(Verdict.ERROR, "verl imports it"),
    _C.NUMPY: _Absence(Verdict.ERROR, "verl imports it"),
    _C.RAY: _Absence(Verdict.ERROR, "verl starts its workers with it"),
    _C.EINOPS: _Absence(
        Verdict.WARNING, "use_remove_padding and Ulysses end with `No module named 'einops'` from 796871d7 to v0.7.1"
    ),
    _C.PEFT: _Absence(Verdict.WARNING, "verl's workers import it for LoRA"),
    _C.PYARROW: _Absence(Verdict.WARNING, "datasets, with which verl reads its data, imports it"),
    _C.TRANSFER_QUEUE: _Absence(Verdict.WARNING, "main_ppo imports it from v0.9.1 on"),
}
"""What must be there wherever the pin's documents speak of it; other parts are needed by some jobs only."""

_WHY = {
    _C.TORCH: "torch_npu and vllm-ascend are built against one PyTorch",
    _C.TORCH_NPU: "vllm-ascend and CANN were tested with these",
    _C.VLLM: "vllm-ascend changes vLLM's own classes, and fits the vLLM of its number",
    _C.VLLM_ASCEND: "verl's rollout uses names of vLLM and vllm-ascend that differ between releases",
    _C.TENSORDICT: "0.9.0 and what is outside of these loses or reorders verl's batches",
    _C.NUMPY: "packages that were compiled against the other major version cannot be imported",
    _C.MINDSPEED: "MindSpeed changes Megatron's own classes, and fits one Megatron",
    _C.MEGATRON: "MindSpeed changes Megatron's own classes, and fits one Megatron",
}


def judge_versions(site: Site, component: Component) -> Iterator[Finding]:
    """Judge one package: there or not, supported on NPUs or not, of a version that a document names or not."""
    need, package = Need.of(site, component), site.package(component)
    unsupported = bool(need.claims) and not need.supported
    if package is None:
        yield _absent(site, need, unsupported)
    elif unsupported:
        yield _unsupported(site, need, package)
    elif (clash := clash_with(site, component, package)) is not None:
        yield _clashing(need, package, clash)
    elif package.parsed is None or need.met_by(package.parsed):
        yield _commit(need, package)
    elif site.virtual:
        yield skipped(component.value, f"{package}: virtual NPUs take it (SIMULATED)", needed=str(need))
    else:
        yield warning(
            component.value,
            str(package),
            needed=str(need),
            why=_WHY.get(component, f"verl {need.pin} was written for and tested with these"),
            fix=install_command(need),
        )


def _clashing(need: Need, package: Package, clash: Judgement) -> Finding:
    # The documents of some pins leave room for versions that fail.
    told = bool(need.supported) and package.parsed is not None and not need.met_by(package.parsed)
    name = need.component.value
    fix = install_command(need) if told else f"pip install {name}=={clash.install}"
    judge = warning if clash.healed else error
    return judge(name, str(package), needed=str(need) if told else clash.needed, why=clash.why, fix=fix)


def _absent(site: Site, need: Need, unsupported: bool) -> Finding:
    component = need.component
    rule = _NEEDED.get(component)
    # Without a pin, the few packages are asked for without which there is no verl on NPUs at all.
    asked = need.supported or (not need.pin and rule is not None and rule.verdict is Verdict.ERROR)
    if unsupported or rule is None or not asked:
        return skipped(component.value, "not installed", needed=str(need))
    if site.virtual and component in _OF_NPUS - {_C.TORCH}:
        return skipped(component.value, "not needed on virtual NPUs (SIMULATED)")
    if component is _C.TORCH_NPU and not site.is_ascend:
        return skipped(component.value, "not installed, and nothing of Ascend's is here")
    judge = error if rule.verdict is Verdict.ERROR else warning
    needed = str(need) or "any version"
    return judge(component.value, "not installed", needed=needed, why=rule.why, fix=install_command(need))


def _unsupported(site: Site, need: Need, package: Package) -> Finding:
    name = need.component.value
    if site.virtual:
        return skipped(name, f"{package}; virtual NPUs do not use it (SIMULATED)")
    return warning(
        name,
        str(package),
        needed=str(need),
        why="it is made for CUDA; programs that find it installed choose it over the NPU's own code",
        fix=f"pip uninstall -y {name}",
    )


def _commit(need: Need, package: Package) -> Finding:
    """The version fits; where the documents name a commit, that is compared as well."""
    named = [claim for claim in need.supported if _is_commit(claim)]
    others = [claim for claim in need.supported if claim not in named]
    fits = any(package.commit.startswith(claim.revision) for claim in named)
    otherwise = any(claim.revision and package.branch == claim.revision for claim in others)
    if not named or others or fits or otherwise or not package.commit:
        unknown = bool(named) and not package.commit
        return ok(need.component.value, f"{package}{' (its commit is not known)' if unknown else ''}")
    return warning(
        need.component.value,
        str(package),
        needed=f"{' or '.join(claim.revision for claim in named)} ({need.pin})",
        why="all its releases for this Megatron have the same version number, and only the commit tells them apart",
        fix=install_command(need),
    )


def _is_commit(claim: Claim) -> bool:
    return len(claim.revision) >= 7 and set(claim.revision) <= set("0123456789abcdef")


def install_command(need: Need) -> str:
    """Return the command that installs what the first document names."""
    component = need.component
    first = need.supported[0] if need.supported else None
    if first is not None and first.revision and component in _GIT:
        return from_git(component, first.revision)
    return f"pip install {shlex.quote(component.value + (first.needs if first else ''))}"


def from_git(component: Component, revision: str) -> str:
    """Return the command that builds a part from its source, as upstream's documents do."""
    url = _GIT[component]
    folder = url.rpartition("/")[2].removesuffix(".git")
    target = "VLLM_TARGET_DEVICE=empty " if component is _C.VLLM else ""
    return f"git clone {url} && git -C {folder} checkout {revision} && {target}pip install -e {folder}"
