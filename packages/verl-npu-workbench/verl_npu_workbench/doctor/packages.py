"""Checks of Python, verl, and the packages that verl uses: whether they are installed, whether their versions match
verl's documentation, and whether the versions are compatible with each other.

A deviation from the documentation is an error only if it is known to fail. Other deviations are warnings.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from verl_npu.ascend.variables import AUTOLOAD
from verl_npu.environment import SWITCH
from verl_npu.findings import Finding, Severity, error, ok, skipped, warning
from verl_npu.language import gettext as _

from ..pins import PINS, Component, is_commit
from .earlier_plugin import NAME, OURS, is_earlier
from .site import Need, Package, Site

ENV = "verl-npu setup"
"""The command that prints how to install a complete environment."""
_GROUP = "torch.backends"


def judge_python(site: Site) -> Iterator[Finding]:
    """Check that the pin supports the installed Python version."""
    need = Need.of(site, Component.PYTHON)
    if site.virtual or need.met_by(Version(site.python)):
        yield ok("python", site.python)
        return
    version = "3.11" if need.met_by(Version("3.11")) else "3.12" if need.met_by(Version("3.12")) else "3.10"
    yield warning(
        "python",
        site.python,
        expected=str(need),
        why=_(
            "the releases of CANN, torch_npu, and vllm-ascend for this pin are built and tested only for these "
            "Python versions"
        ),
        fix=f"conda create -n verl-npu python={version} -y && conda activate verl-npu",
    )


def judge_verl(site: Site) -> Iterator[Finding]:
    """Report the installed verl version, and the pin that defines the requirements for this version."""
    judged = site.judged
    if judged is None and site.pin is None:
        empty = site.package(Component.TORCH) is None
        yield (error if empty else warning)(
            "verl",
            _("neither verl nor torch in this environment") if empty else _("no verl in this environment"),
            expected=_("one of {pins}").format(pins=_(", ").join(PINS)),
            why=_(
                "the required versions of the other packages depend on the version of verl; verl is not "
                "installed, so no versions were compared"
            ),
            fix=_(
                "{env} --pin v0.7.1  # or another pin; prints the commands that install everything, in order"
            ).format(env=ENV),
        )
    elif judged is None:
        yield skipped("verl", _("no verl in this environment"), expected=str(site.pin and site.pin.name))
    else:
        compared = site.pin.name_of(site.named) if site.pin and site.named else ""
        nearness = "" if judged.exact else _(", nearest to {pin}").format(pin=judged.pin)
        other = (
            _("; the versions that {pin} needs are unknown, so no versions were compared").format(pin=judged.pin)
            if not compared
            else _("; compared with the needs of {compared}").format(compared=compared)
            if compared != judged.pin
            else ""
        )
        package = site.packages.get("verl")
        yield ok("verl", f"{package or judged.pin}{nearness}{other}")


def judge_patches(site: Site) -> Iterator[Finding]:
    """Report the result of `verl-npu check`."""
    judged = site.judged
    if judged is None:
        yield skipped("patches", _("there is no verl to patch"))
    elif judged.refused:
        yield error(
            "patches",
            _(", ").join(judged.refused),
            expected=_("versions of verl and transformers that are compatible with verl-npu's patches"),
            why=_("if one patch of a feature is not compatible, verl-npu does not apply the feature at all"),
            fix=_("verl-npu check --diff  # shows what differs"),
        )
    else:
        off = _("; switched off: {disabled}").format(disabled=_(", ").join(judged.disabled)) if judged.disabled else ""
        yield ok("patches", _("all fit {pin}{off}").format(pin=judged.pin, off=off))


def judge_ways_in(site: Site) -> Iterator[Finding]:
    """Check that verl-npu is loaded in every process that imports torch."""
    why = _(
        "`import torch` calls the entry point in every process, including Ray's workers; without the "
        "entry point, verl runs unpatched"
    )
    switch = SWITCH.text(site.environ)
    found = [each for each in metadata.distributions(name=NAME, path=list(site.path)) if not is_earlier(each)]
    if not found:
        yield warning(
            "ways-in",
            _("verl-npu is on the path but not installed"),
            expected=_("verl-npu's entry point in {group}").format(group=_GROUP),
            why=why,
            fix=f"pip install {OURS}",
        )
    elif not any(point.group == _GROUP and point.name == "verl_npu" for each in found for point in each.entry_points):
        yield error(
            "ways-in",
            f"verl-npu {found[0].version} has no entry point in {_GROUP}",
            expected=_("verl-npu's entry point in {group}").format(group=_GROUP),
            why=why,
            fix=f"pip install --force-reinstall --no-deps {OURS}",
        )
    elif site.environ.get(AUTOLOAD) == "0":
        yield error(
            "ways-in",
            f"{AUTOLOAD}=0",
            expected=_("the variable is unset, or is 1"),
            why=_("with 0, torch loads neither torch_npu nor verl-npu, and verl finds no NPU"),
            fix=f"unset {AUTOLOAD}",
        )
    elif switch.lower() not in SWITCH.words:
        yield skipped(
            "ways-in", _("{switch}={switch_too} is not a valid value").format(switch=SWITCH.name, switch_too=switch)
        )
    elif switch.lower() == "off":
        yield warning(
            "ways-in",
            f"{SWITCH.name}=off",
            expected=_("auto or on"),
            why=_("verl runs unpatched in every process of this environment"),
            fix=f"unset {SWITCH.name}",
        )
    else:
        yield ok("ways-in", f"{_GROUP}, {SWITCH.name}={switch}")


@dataclass(frozen=True, slots=True)
class Clash:
    """Versions of a package that are known to fail with some or all pins."""

    component: Component
    versions: SpecifierSet
    pins: tuple[str, ...]
    """The pins that these versions do not work with. Empty means all pins."""
    needed: str
    install: str
    """A version that works."""
    why: str
    """The reason for the failure, with the text of the error."""
    source: str
    """The place where the failure was observed."""
    healed: str = ""
    """How verl-npu makes the versions work. Empty if these versions do not work with verl-npu either."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The reason why a package version fails in an environment, and the fix."""

    why: str
    needed: str
    install: str
    healed: bool


CLASHES = (
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet("<4.52.4"),
        ("796871d7", "v0.6.1"),
        _("4.52.4 or later"),
        "4.52.4",
        _("`import verl` fails with a ValueError on NPUs"),
        _("verl/__init__.py of these pins"),
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.54,<4.55"),
        (),
        _("4.53.3 or before, or 4.55.4 or later"),
        "4.57.6",
        _("transformers 4.54 has no code for NPUs, so flash_attention_2, which verl uses, fails with an ImportError"),
        "https://github.com/huggingface/transformers/pull/40151",
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.55.2,<5"),
        ("796871d7",),
        "4.52.4",
        "4.52.4",
        _(
            "verl's workers fail with `cannot import name 'index_first_axis' from "
            "'transformers.integrations.npu_flash_attention'`"
        ),
        "https://github.com/volcengine/verl/issues/3561",
        healed=_("verl-npu's feature attention adds the function; training works on virtual NPUs (SIMULATED)"),
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.55,<4.55.3"),
        (),
        _("4.53.3 or before, or 4.55.4 or later"),
        "4.57.6",
        _("transformers 4.55.0 to 4.55.2 look for flash_attn on NPUs and fail with `No module named 'flash_attn'`"),
        "https://github.com/huggingface/transformers/pull/40151",
        healed="verl-npu's feature attention redirects it to the NPU's own flash attention",
    ),
)


def clash_with(site: Site, component: Component, package: Package) -> Judgement | None:
    """Return the reason why this package version fails in this environment, or None if no problem is known."""
    version = package.parsed
    if version is None:
        return None
    pin = site.pin.name if site.pin else ""
    for clash in CLASHES:
        concerned = clash.component is component and (not clash.pins or pin in clash.pins)
        if not concerned or not clash.versions.contains(version, prereleases=True):
            continue
        healed = bool(clash.healed) and site.attention_in_force()
        why = (
            _("{why}; {healed}").format(why=clash.why, healed=clash.healed)
            if healed
            else _("{why} ({source})").format(why=clash.why, source=clash.source)
        )
        return Judgement(why, clash.needed, clash.install, healed)
    return None


COMPARED = (
    Component.TORCH,
    Component.TORCH_NPU,
    Component.TORCHVISION,
    Component.TRITON_ASCEND,
    Component.TRANSFORMERS,
    Component.TENSORDICT,
    Component.NUMPY,
    Component.EINOPS,
    Component.RAY,
    Component.PEFT,
    Component.PYARROW,
    Component.TRANSFER_QUEUE,
    Component.VLLM,
    Component.VLLM_ASCEND,
    Component.SGLANG,
    Component.MINDSPEED,
    Component.MEGATRON,
    Component.MBRIDGE,
    Component.FLASH_ATTN,
    Component.LIGER_KERNEL,
)
"""The packages whose versions are compared one by one, in the order that `verl-npu setup` installs them. triton is
not in this list, because the module `triton` checks it."""
_NPU_PACKAGES = frozenset(
    {
        Component.TORCH,
        Component.TORCH_NPU,
        Component.TORCHVISION,
        Component.VLLM,
        Component.VLLM_ASCEND,
        Component.SGLANG,
        Component.TRITON_ASCEND,
    }
)
"""Packages that depend on torch_npu, which virtual NPUs replace."""
_GIT = {
    Component.TRANSFORMERS: "https://github.com/huggingface/transformers",
    Component.VLLM: "https://github.com/vllm-project/vllm.git",
    Component.VLLM_ASCEND: "https://github.com/vllm-project/vllm-ascend.git",
    Component.SGLANG: "https://github.com/sgl-project/sglang.git",
    Component.MINDSPEED: "https://gitcode.com/Ascend/MindSpeed.git",
    Component.MEGATRON: "https://github.com/NVIDIA/Megatron-LM.git",
    Component.TRANSFER_QUEUE: "https://github.com/Ascend/TransferQueue.git",
}


@dataclass(frozen=True, slots=True)
class _Absence:
    severity: Severity
    why: str


_NEEDED: Mapping[Component, _Absence] = {
    Component.TORCH: _Absence(Severity.ERROR, _("verl and everything below it need PyTorch")),
    Component.TORCH_NPU: _Absence(
        Severity.ERROR, _("without torch_npu, PyTorch has no device `npu`, and verl finds no NPU")
    ),
    Component.TRANSFORMERS: _Absence(Severity.ERROR, _("verl imports this package")),
    Component.TENSORDICT: _Absence(Severity.ERROR, _("verl imports this package")),
    Component.NUMPY: _Absence(Severity.ERROR, _("verl imports this package")),
    Component.RAY: _Absence(Severity.ERROR, _("verl starts its workers with Ray")),
    Component.EINOPS: _Absence(
        Severity.WARNING,
        _("from 796871d7 to v0.7.1, use_remove_padding and Ulysses fail with `No module named 'einops'`"),
    ),
    Component.PEFT: _Absence(Severity.WARNING, _("verl's workers import this package for LoRA")),
    Component.PYARROW: _Absence(
        Severity.WARNING, _("verl reads its data with the package datasets, which imports this package")
    ),
    Component.TRANSFER_QUEUE: _Absence(Severity.WARNING, _("from v0.9.1 on, main_ppo imports this package")),
}
"""The packages that every job needs, provided that the pin's documentation lists them. Only some jobs need the other
packages."""
_WHY = {
    Component.TORCH: _("torch_npu and vllm-ascend are built for one release of PyTorch"),
    Component.TORCH_NPU: _("vllm-ascend and CANN were tested with this version"),
    Component.VLLM: _("vllm-ascend changes vLLM's own classes, and fits only the vLLM with its own version number"),
    Component.VLLM_ASCEND: _("verl's rollout uses names in vLLM and vllm-ascend that differ between releases"),
    Component.TENSORDICT: _("tensordict 0.9.0, and versions outside this range, lose or reorder verl's batches"),
    Component.NUMPY: _("packages that were compiled for another major version of numpy cannot be imported"),
    Component.MINDSPEED: _("MindSpeed changes Megatron's own classes, and fits only one Megatron"),
    Component.MEGATRON: _("MindSpeed changes Megatron's own classes, and fits only one Megatron"),
}


def judge_versions(site: Site, component: Component) -> Iterator[Finding]:
    """Check that a package is installed, that the package works on NPUs, and that verl's documentation lists the
    installed version."""
    need, package = Need.of(site, component), site.package(component)
    unsupported = bool(need.claims) and not need.supported
    if package is None:
        yield _absent(site, need, unsupported)
    elif unsupported:
        yield _unsupported(site, need, package)
    elif not _is_named(need, package) and (clash := clash_with(site, component, package)) is not None:
        yield _clashing(need, package, clash)
    elif package.parsed is None or need.met_by(package.parsed):
        yield _commit(need, package)
    elif site.virtual:
        yield skipped(
            component.value,
            _("{package}: virtual NPUs accept it (SIMULATED)").format(package=package),
            expected=str(need),
        )
    else:
        yield warning(
            component.value,
            str(package),
            expected=str(need),
            why=_why(need),
            fix=install_command(need),
        )


def _why(need: Need) -> str:
    arch = next((claim.arch for claim in need.supported if claim.arch), "")
    if arch:
        return _("verl's documentation lists this version for {arch} processors").format(arch=arch)
    tested = _("verl {pin} was written for and tested with this version").format(pin=need.pin)
    return _WHY.get(need.component, tested)


def _clashing(need: Need, package: Package, clash: Judgement) -> Finding:
    # The documentation of some pins allows versions that fail.
    told = bool(need.supported) and package.parsed is not None and not need.met_by(package.parsed)
    # A published environment names a commit, and its other packages belong to that commit.
    named = bool(need.supported) and bool(need.supported[0].revision)
    name = need.component.value
    fix = install_command(need) if told or named else f"pip install {name}=={clash.install}"
    judge = warning if clash.healed else error
    return judge(name, str(package), expected=str(need) if told or named else clash.needed, why=clash.why, fix=fix)


def _absent(site: Site, need: Need, unsupported: bool) -> Finding:
    component = need.component
    rule = _NEEDED.get(component)
    if unsupported or rule is None or not need.supported:
        return skipped(component.value, _("not installed"), expected=str(need))
    if site.virtual and component in _NPU_PACKAGES - {Component.TORCH}:
        return skipped(component.value, _("not needed on virtual NPUs (SIMULATED)"))
    if component is Component.TORCH_NPU and not site.is_ascend:
        return skipped(component.value, _("not installed, and no other Ascend software is here"))
    judge = error if rule.severity is Severity.ERROR else warning
    return judge(component.value, _("not installed"), expected=str(need), why=rule.why, fix=install_command(need))


def _unsupported(site: Site, need: Need, package: Package) -> Finding:
    name = need.component.value
    if site.virtual:
        return skipped(name, _("{package}; virtual NPUs do not use it (SIMULATED)").format(package=package))
    return warning(
        name,
        str(package),
        expected=str(need),
        why=_("this package is built for CUDA; if it is installed, programs use it instead of their own NPU code"),
        fix=f"pip uninstall -y {name}",
    )


def _commit(need: Need, package: Package) -> Finding:
    """Judge a package whose version is correct. If the documentation also names a commit, compare the commit."""
    named = [claim for claim in need.supported if is_commit(claim.revision)]
    others = [claim for claim in need.supported if claim not in named]
    fits = any(package.commit.startswith(claim.revision) for claim in named)
    otherwise = any(claim.revision and package.branch == claim.revision for claim in others)
    if not named or others or fits or otherwise or not package.commit:
        unknown = bool(named) and not package.commit
        return ok(need.component.value, f"{package}{' (its commit is not known)' if unknown else ''}")
    return warning(
        need.component.value,
        str(package),
        expected=f"{' or '.join(claim.revision for claim in named)} ({need.pin})",
        why=_("other commits have the same version number, but only this commit was tested"),
        fix=install_command(need),
    )


def _is_named(need: Need, package: Package) -> bool:
    """Return whether the installed package is exactly the commit that a document names. In this case, the package's
    version does not matter."""
    named = (claim.revision for claim in need.supported if is_commit(claim.revision))
    return any(package.commit.startswith(revision) for revision in named)


def install_command(need: Need) -> str:
    """Return the command that installs the version given in the first document that requires the package."""
    component = need.component
    first = need.supported[0] if need.supported else None
    if first is not None and first.revision and component in _GIT:
        return from_git(component, first.revision)
    return f"pip install {shlex.quote(component.value + (first.needs if first else ''))}"


def from_git(component: Component, revision: str) -> str:
    """Return the command that builds a package from source, as given in the upstream documentation."""
    url = _GIT[component]
    folder = url.rpartition("/")[2].removesuffix(".git")
    target = "VLLM_TARGET_DEVICE=empty " if component is Component.VLLM else ""
    return f"git clone {url} && git -C {folder} checkout {revision} && {target}pip install -e {folder}"


def judge_torch(site: Site) -> Iterator[Finding]:
    """Check that torch_npu was built for the installed PyTorch."""
    name = "torch-pair"
    torch, torch_npu = site.package(Component.TORCH), site.package(Component.TORCH_NPU)
    if torch is None or torch_npu is None or torch.parsed is None or torch_npu.parsed is None:
        yield skipped(name, _("torch and torch_npu are not both installed"))
        return
    mine, theirs = torch.parsed, torch_npu.parsed
    asked = torch_npu.requirement("torch")
    found = _("torch {version} with torch_npu {torch_npu_version}").format(
        version=torch.version, torch_npu_version=torch_npu.version
    )
    fix = f"pip install torch=={theirs.base_version} torch_npu=={torch_npu.version}"
    base = Version(mine.base_version)
    if (base.major, base.minor) != (theirs.major, theirs.minor):
        yield error(
            name,
            found,
            expected=_("torch {major}.{minor}").format(major=theirs.major, minor=theirs.minor),
            why=_(
                "libtorch_npu.so is compiled for one release of PyTorch; with another release, `import "
                "torch_npu` fails with `undefined symbol: _ZN…`"
            ),
            fix=fix,
        )
    elif base.release != theirs.release or (asked and not asked.specifier.contains(mine, prereleases=True)):
        yield warning(
            name,
            found,
            expected=str(asked) if asked else _("torch {base_version}").format(base_version=theirs.base_version),
            why=_("torch_npu replaces internals of PyTorch, and these change between PyTorch's patch releases"),
            fix=fix,
        )
    else:
        yield ok(name, found)


def judge_engine(site: Site) -> Iterator[Finding]:
    """Check that the versions of vLLM and vllm-ascend are compatible. On NPUs, neither package works without the
    other."""
    name = "engine-pair"
    vllm, ascend = site.package(Component.VLLM), site.package(Component.VLLM_ASCEND)
    if site.virtual:
        yield skipped(name, _("not needed on virtual NPUs (SIMULATED)"))
    elif vllm is None and ascend is None:
        yield from _without_vllm(site, name)
    elif vllm is None and ascend is not None:
        wanted = _release(ascend.parsed)
        yield error(
            name,
            _("vllm-ascend {ascend} without vllm").format(ascend=ascend),
            expected=_("vllm {wanted}").format(wanted=wanted or _("with the same version number")),
            why=_("vllm-ascend imports vllm, and fails with `No module named 'vllm'` if vllm is not installed"),
            fix=_exchange(site, Component.VLLM, wanted),
        )
    elif ascend is None and vllm is not None:
        wanted = str(Need.of(site, Component.VLLM_ASCEND)) or _("vllm-ascend for vllm {version}").format(
            version=vllm.version
        )
        yield warning(
            name,
            _("vllm {vllm} without vllm-ascend").format(vllm=vllm),
            expected=wanted,
            why=_("vLLM alone does not support NPUs: a rollout fails with `Failed to infer device type`"),
            fix=_exchange(site, Component.VLLM_ASCEND, _release(vllm.parsed)),
        )
    elif vllm is not None and ascend is not None:
        yield _judge_engine(site, name, vllm, ascend)


def _without_vllm(site: Site, name: str) -> Iterator[Finding]:
    if site.package(Component.SGLANG) is not None:
        yield ok(name, "SGLang")
    elif site.pin is None:
        yield skipped(name, _("no rollout engine; the pin decides which one is needed"))
    else:
        yield warning(
            name,
            _("no rollout engine"),
            expected=_("vllm {of} and vllm-ascend {need_of}").format(
                of=Need.of(site, Component.VLLM), need_of=Need.of(site, Component.VLLM_ASCEND)
            ),
            why=_("reinforcement learning needs an engine to generate answers; only SFT works without an engine"),
            fix=" && ".join(install_command(Need.of(site, part)) for part in (Component.VLLM, Component.VLLM_ASCEND)),
        )


def _judge_engine(site: Site, name: str, vllm: Package, ascend: Package) -> Finding:
    found = _("vllm {vllm} with vllm-ascend {ascend}").format(vllm=vllm, ascend=ascend)
    if vllm.parsed is None or ascend.parsed is None or vllm.parsed.release[:2] == ascend.parsed.release[:2]:
        return ok(name, found)
    return warning(
        name,
        found,
        expected=_("the same version number for vllm and vllm-ascend"),
        why=_(
            "vllm-ascend patches vLLM's own classes; with another release of vLLM, vllm-ascend fails with an "
            "ImportError when it starts, or computes incorrect results"
        ),
        fix=_exchange(site, *_wrong_one(site, vllm.parsed, ascend.parsed)),
    )


def _wrong_one(site: Site, vllm: Version, ascend: Version) -> tuple[Component, str]:
    """Return which of the two packages does not match the pin, and the release of this package that the pin
    requires."""
    if site.pin is not None and Need.of(site, Component.VLLM).met_by(vllm):
        return Component.VLLM_ASCEND, _release(vllm)
    return Component.VLLM, _release(ascend)


def _exchange(site: Site, part: Component, release: str) -> str:
    """Return the command that installs a package from source. vLLM's wheel cannot be used, because it would install a
    CUDA build of PyTorch."""
    need = Need.of(site, part)
    return install_command(need) if need.supported else from_git(part, f"v{release}" if release else "main")


def judge_megatron(site: Site) -> Iterator[Finding]:
    """Check that the versions of MindSpeed and Megatron are compatible. If Megatron is missing, importing MindSpeed
    leaves PyTorch partly patched."""
    name = "megatron-pair"
    megatron, mindspeed = site.package(Component.MEGATRON), site.package(Component.MINDSPEED)
    if megatron is None and mindspeed is None:
        yield skipped(name, _("neither MindSpeed nor Megatron is installed; FSDP does not need them"))
    elif megatron is None:
        yield warning(
            name,
            _("MindSpeed {mindspeed} without Megatron").format(mindspeed=mindspeed),
            expected=f"megatron-core {Need.of(site, Component.MEGATRON)}",
            why=_(
                "`import mindspeed.megatron_adaptor` fails, and leaves PyTorch partly patched in the importing process"
            ),
            fix=_("export PYTHONPATH=$PYTHONPATH:/path/to/Megatron-LM  # or: pip install -e Megatron-LM"),
        )
    elif mindspeed is None:
        yield warning(
            name,
            _("megatron-core {megatron} without MindSpeed").format(megatron=megatron),
            expected=_("mindspeed {of}").format(of=Need.of(site, Component.MINDSPEED)),
            why=_(
                "without MindSpeed, Megatron runs only on CUDA; on NPUs, verl's Megatron backend requires MindSpeed"
            ),
            fix="git clone https://gitcode.com/Ascend/MindSpeed.git && pip install -e MindSpeed",
        )
    else:
        yield _judge_megatron(name, megatron, mindspeed)


def _judge_megatron(name: str, megatron: Package, mindspeed: Package) -> Finding:
    found = _("megatron-core {megatron} with MindSpeed {mindspeed}").format(megatron=megatron, mindspeed=mindspeed)
    mine, theirs = megatron.parsed, mindspeed.parsed
    if mine is None or theirs is None or mine.release[:2] == theirs.release[:2]:
        return ok(name, found)
    return warning(
        name,
        found,
        expected=_("Megatron {major}.{minor}, the release that this version of MindSpeed supports").format(
            major=theirs.major, minor=theirs.minor
        ),
        why=_(
            "MindSpeed replaces functions of Megatron; with another release of Megatron, training fails, or "
            "computes incorrect results without an error"
        ),
        fix=f"git -C Megatron-LM checkout core_{'v' if theirs.minor < 13 else 'r'}{theirs.base_version}",
    )


def _release(version: Version | None) -> str:
    return ".".join(map(str, version.release)) if version is not None else ""
