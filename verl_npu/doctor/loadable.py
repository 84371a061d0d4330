"""Whether the compiled parts of torch_npu and vllm-ascend could be loaded, judged from their files alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from ..ascend.matrix import Component
from .cann import toolkit
from .finding import Finding, error, ok, skipped, warning
from .libraries import Lack, Origin, lacks, origin
from .site import Site

__all__ = ["explain", "judge_loadable"]

_DRIVER_FOLDERS = ("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/common")
_FILES = {
    Component.TORCH_NPU: ("torch_npu/_C.*.so", "torch_npu/lib/libtorch_npu.so"),
    Component.VLLM_ASCEND: ("vllm_ascend/vllm_ascend_C*.so", "vllm_ascend/*.so"),
}


def judge_loadable(site: Site) -> Iterator[Finding]:
    """One finding for each of the two packages, with the first library that is missing and where it comes from."""
    for component, patterns in _FILES.items():
        name = f"{component.value}-libraries"
        package = site.package(component)
        if package is None:
            yield skipped(name, "not installed")
            continue
        files = sorted({file for pattern in patterns for file in package.folder.glob(pattern)})
        if site.virtual:
            yield skipped(name, "not needed on virtual NPUs (SIMULATED)")
        elif not files:
            yield skipped(name, f"{component.value} {package.version} has no compiled part that can be looked at")
        else:
            yield _judge(site, name, component, files)


def _judge(site: Site, name: str, component: Component, files: list[Path]) -> Finding:
    torch = site.package(Component.TORCH)
    torch_npu = site.package(Component.TORCH_NPU)
    preloaded = [torch.folder / "torch" / "lib"] if torch else []
    preloaded += [torch_npu.folder / "torch_npu" / "lib"] if torch_npu else []
    found = list(lacks(site, files, preloaded))
    absent = [lack for lack in found if not lack.symbol]
    old = [lack for lack in found if lack.symbol]
    if absent:
        # One file that is missing names the cause; CANN's come before the driver's, which they load.
        first = absent[0]
        others = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
        whose, fix = explain(site, first.library)
        # CANN's may have been loaded by torch_npu before, if CANN is set up.
        cann = toolkit(site)
        perhaps = component is Component.VLLM_ASCEND and whose == Origin.CANN and cann is not None and cann.libraries
        judge = warning if perhaps else error
        return judge(
            name,
            f"{first.library} is not found{others}; {first.wanted_by} needs it",
            needed=f"{first.library}, of {whose}",
            why=f"`import {component.value.replace('-', '_')}` ends with `{first.library}: cannot open shared object "
            "file`",
            fix=fix,
        )
    certain = [lack for lack in old if lack.elsewhere is None]
    if old:
        return _too_old(name, (certain or old)[0])
    return ok(name, f"{len(files)} compiled {'file' if len(files) == 1 else 'files'}, all libraries found")


def _too_old(name: str, lack: Lack) -> Finding:
    place = lack.places[0]
    found = f"{place} has no {lack.symbol}; {lack.wanted_by} needs it"
    needed = f"a {lack.library} with {lack.symbol}"
    why = f"the import ends with `version `{lack.symbol}' not found`"
    if lack.elsewhere is not None:
        # Which of the two is loaded depends on what the process loads first.
        fix = f"export LD_LIBRARY_PATH={shlex.quote(str(lack.elsewhere.parent))}:$LD_LIBRARY_PATH"
        return warning(name, found, needed=needed, why=why, fix=fix)
    if lack.library.startswith("libstdc++"):
        fix = "conda install -c conda-forge libstdcxx-ng  # or use an image with a newer GCC"
    else:
        fix = "use an image with a newer system, such as the one of the pin's Dockerfile"
    return error(name, found, needed=needed, why=why, fix=fix)


def explain(site: Site, library: str) -> tuple[str, str]:
    """Return whose a library is that cannot be found, and the command that makes it be found."""
    whose = origin(library)
    if whose == Origin.DRIVER:
        folders = [str(site.at(folder)) for folder in _DRIVER_FOLDERS if site.at(folder).is_dir()]
        if folders:
            return whose, f"export LD_LIBRARY_PATH={':'.join(folders)}:$LD_LIBRARY_PATH"
        return whose, "docker run -v /usr/local/Ascend/driver:/usr/local/Ascend/driver …  # or install the driver"
    if whose == Origin.NNAL:
        return whose, "source /usr/local/Ascend/nnal/atb/set_env.sh"
    found = toolkit(site)
    if found is None:
        return whose, "install the CANN toolkit and its kernels, then source its set_env.sh"
    return whose, f"source {shlex.quote(str(found.script))}"
