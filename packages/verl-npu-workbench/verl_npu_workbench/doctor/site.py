"""The machine and the environment that the doctor examines.

Packages are found through their metadata and never imported. The NPUs are the ones that `npu-smi info` lists.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from verl_npu import environment
from verl_npu.ascend.variables import virtual_npus
from verl_npu.language import gettext as _

from ..pins import SGLANG, VLLM, Claim, Component, Environment, Pin
from ..processes import captured


class Level(enum.Enum):
    """The depth of an examination."""

    STATIC = "static"
    """Only read files and metadata. Import none of the user's packages."""
    IMPORT = "import"
    """Also import the packages, each in a separate process."""
    DEVICE = "device"
    """Also run an operator and a collective on the NPUs."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of `verl-npu check` for the installed verl."""

    pin: str
    """The nearest pin."""
    exact: bool
    refused: tuple[str, ...]
    """The features that are in a bad state, each with its state: they have drifted, or upstream's own code is
    ineffective."""
    disabled: tuple[str, ...] = ()
    """The features that the user has switched off."""


_ARCHES = {"aarch64": "arm", "arm64": "arm", "x86_64": "x86", "amd64": "x86"}


@dataclass(frozen=True)
class Site:
    """A site: one environment on one machine. The defaults describe the machine and the environment of this
    process."""

    pin: Pin | None
    """The pin whose requirements apply. None if no verl is found and the user named no pin."""
    judged: Judged | None
    """The result of `verl-npu check` for the installed verl. None if no verl is installed."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    python: str = platform.python_version()
    prefix: Path = Path(sys.prefix)
    root: Path = Path("/")
    """The root of the file system; tests use another folder."""
    shared_memory: int | None = None
    """The size of /dev/shm in bytes; None if there is none."""
    open_files: int = 0
    """The number of files that a process may open."""
    arch: str = ""
    """`arm` or `x86`; empty for other processors."""

    @classmethod
    def here(cls, pin: Pin | None, judged: Judged | None) -> Site:
        """Return a `Site` that describes this machine and the environment of the current Python interpreter."""
        try:
            shared = shutil.disk_usage("/dev/shm").total
        except OSError:
            shared = None
        files, _unused = resource.getrlimit(resource.RLIMIT_NOFILE)
        endless = files == resource.RLIM_INFINITY
        arch = _ARCHES.get(platform.machine().lower(), "")
        return cls(pin, judged, shared_memory=shared, open_files=sys.maxsize if endless else files, arch=arch)

    def at(self, path: str) -> Path:
        """Return the path below `root` that corresponds to an absolute path."""
        return self.root / path.lstrip("/")

    @cached_property
    def packages(self) -> Mapping[str, Package]:
        """All installed packages, as a mapping from canonical names to packages."""
        return installed_packages(self.path)

    def package(self, component: Component) -> Package | None:
        """Return the package of a component, or None if it is not installed."""
        return self.packages.get(component.value.lower().replace("_", "-"))

    @cached_property
    def smi(self) -> Answer:
        """The output of `npu-smi info`."""
        return ask_npu_smi(self.environ)

    @property
    def virtual(self) -> str:
        """The number of virtual NPUs, as the string in the environment variable, or an empty string if no virtual NPUs
        are requested."""
        return virtual_npus(self.environ)

    @cached_property
    def engines(self) -> frozenset[str]:
        """The installed rollout engines."""
        parts = {VLLM: (Component.VLLM, Component.VLLM_ASCEND), SGLANG: (Component.SGLANG,)}
        return frozenset(name for name, each in parts.items() if any(map(self.package, each)))

    @cached_property
    def is_ascend(self) -> bool:
        """Return whether any Ascend software or hardware is detected."""
        signs = ("/usr/local/Ascend", "/dev/davinci_manager", "/dev/davinci0")
        named = any(name in self.environ for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
        return (
            named
            or self.smi.exists
            or any(map(self.package, (Component.TORCH_NPU, Component.VLLM_ASCEND)))
            or any(self.at(sign).exists() for sign in signs)
        )

    @property
    def kind(self) -> str:
        """The kind of the NPUs: `a2`, `a3`, or `a5`, or an empty string if the kind is unknown or mixed."""
        kinds = {npu.kind for npu in self.smi.npus}
        return kinds.pop() if len(kinds) == 1 else ""

    @cached_property
    def named(self) -> Environment | None:
        """The pin's environment that matches the most installed packages, or None if there is no pin. In a tie, the
        environment from verl's documentation is used."""
        if self.pin is None:
            return None
        return max(self.pin.environments, key=self._fits)

    def _fits(self, named: Environment) -> int:
        """Return the number of installed packages that match an environment."""
        fits = 0
        for component, cell in named.cells.items():
            package = self.package(component)
            version = None if package is None else package.parsed
            claims = [
                claim
                for claim in cell.about(self.engines, self.kind, self.arch)
                if claim.needs and not claim.unsupported
            ]
            fits += version is not None and any(claim.accepts(version) for claim in claims)
        return fits

    def attention_in_force(self) -> bool:
        """Return whether verl-npu's feature `attention` is enabled in jobs that start in this environment."""
        off = environment.SWITCH.text(self.environ) == "off"
        left_out = environment.DISABLE.text(self.environ).replace(" ", "").split(",")
        return not off and "attention" not in left_out and self.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"


@dataclass(frozen=True, slots=True)
class Need:
    """What the documentation of a pin requires of one component at a site."""

    component: Component
    pin: str
    """The name of the pin. The environment's name is appended unless verl's own documentation describes the
    environment. Empty if no pin is known; in this case, no version is required."""
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, site: Site, component: Component) -> Need:
        """Return the versions of a component that the site's pin requires for the site's rollout engines and kind of
        NPU."""
        if site.pin is None or site.named is None:
            return cls(component, "", ())
        cell = site.named.cells.get(component)
        return cls(
            component, site.pin.name_of(site.named), cell.about(site.engines, site.kind, site.arch) if cell else ()
        )

    @property
    def supported(self) -> tuple[Claim, ...]:
        """The claims that require or recommend a version, without the claims that a version is unsupported."""
        return tuple(claim for claim in self.claims if not claim.unsupported)

    def met_by(self, version: Version) -> bool:
        """Return whether at least one document allows this version, or no document mentions the component."""
        return not self.supported or any(claim.accepts(version) for claim in self.supported)

    def at_least_met_by(self, version: Version) -> bool:
        """Return whether a version is at least the documented version."""
        named = [Version(each.version) for claim in self.supported for each in SpecifierSet(claim.needs)]
        return self.met_by(version) or not named or version >= min(named)

    def at(self, prefix: str = "") -> str:
        """Return a phrase such as ` of CANN 8.3.RC1` that names the version to install, or an empty string if the
        documentation does not specify a version."""
        exact = self.exact
        return _(" of {prefix}{exact}").format(prefix=prefix, exact=exact) if exact else ""

    @property
    def exact(self) -> str:
        """The exact version to install, or an empty string if the documentation does not specify a version."""
        for claim in self.supported:
            if claim.needs.startswith("==") and "*" not in claim.needs and "," not in claim.needs:
                return claim.needs.removeprefix("==")
        return ""

    def __str__(self) -> str:
        """Describe the claims, without repetitions. Return an empty string if there are no claims."""
        named = dict.fromkeys(str(claim).removeprefix("==") for claim in self.claims)
        return f"{' or '.join(named)} ({self.pin})" if named else ""


_MEGATRON = ("MAJOR", "MINOR", "PATCH")


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package."""

    name: str
    version: str
    folder: Path
    """The folder with its modules."""
    requires: tuple[str, ...] = ()
    commit: str = ""
    """The git commit that it was installed from; empty if unknown."""
    branch: str = ""
    """The branch or tag that it was installed from, or that its checkout is on now."""

    @property
    def parsed(self) -> Version | None:
        """The parsed version, or None if the version cannot be parsed as a Python version or is meaningless (for
        example, in a shallow clone)."""
        try:
            version = Version(self.version)
        except InvalidVersion:
            return None
        return None if (version.major, version.minor) == (0, 1) and version.is_devrelease else version

    def requirement(self, name: str) -> Requirement | None:
        """Return the package's unconditional requirement for another package, or None if there is no such
        requirement."""
        for text in self.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None and canonicalize_name(requirement.name) == canonicalize_name(name):
                return requirement
        return None

    def __str__(self) -> str:
        where = (
            _(" at {commit}").format(commit=self.commit[:8])
            if self.commit
            else _(" at {branch}").format(branch=self.branch)
            if self.branch
            else ""
        )
        return f"{self.version}{where}"


def installed_packages(path: Sequence[str]) -> dict[str, Package]:
    """Return the packages on `path`, as a mapping from canonical names to packages. If two packages have the same
    name, the first package is used, as in Python."""
    found: dict[str, Package] = {}
    for each in metadata.distributions(path=list(path)):
        name = each.metadata["Name"]
        if name and each.version and canonicalize_name(name) not in found:
            found[canonicalize_name(name)] = _package(name, each)
    if "megatron-core" not in found:
        checkouts = (each for each in map(_megatron, map(Path, path)) if each is not None)
        found.update((each.name, each) for each in itertools.islice(checkouts, 1))
    return found


def _package(name: str, distribution: metadata.Distribution) -> Package:
    folder = Path(str(distribution.locate_file("")))
    commit, branch = "", ""
    content = _json(distribution.read_text("direct_url.json"))
    vcs = content.get("vcs_info")
    if isinstance(vcs, dict):
        commit, branch = str(vcs.get("commit_id", "")), str(vcs.get("requested_revision", ""))
    url = urlsplit(str(content.get("url", "")))
    if url.scheme == "file":
        checkout = Path(unquote(url.path))
        commit, branch = _head(checkout)
        folder = checkout if checkout.is_dir() else folder
    return Package(name, distribution.version, folder, tuple(distribution.requires or ()), commit, branch)


def distribution_url(name: str, path: Sequence[str]) -> str:
    """Return the source that pip can reinstall a distribution from: a repository's address with a commit, or a file.
    Return an empty string if the distribution came from a package index, or if the source is unknown."""
    for each in metadata.distributions(name=name, path=list(path)):
        content = _json(each.read_text("direct_url.json"))
        url, vcs, folder = str(content.get("url", "")), content.get("vcs_info"), content.get("dir_info")
        if isinstance(vcs, dict):
            return f"{name} @ {vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}"
        if url and not (isinstance(folder, dict) and folder.get("editable")):
            return unquote(urlsplit(url).path) if url.startswith("file:") else url
    return ""


def _json(text: str | None) -> dict[str, object]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _head(checkout: Path) -> tuple[str, str]:
    """Return the commit and the branch of a git checkout, read from its files without running git. Either string can
    be empty."""
    try:
        head = (checkout / ".git" / "HEAD").read_text().strip()
    except OSError:
        return "", ""
    if not head.startswith("ref: "):
        return (head, "") if re.fullmatch(r"[0-9a-f]{40}", head) else ("", "")
    reference = head.removeprefix("ref: ")
    try:
        commit = (checkout / ".git" / reference).read_text().strip()
    except OSError:
        commit = ""
    return commit, reference.removeprefix("refs/heads/")


def _megatron(entry: Path) -> Package | None:
    """Return Megatron if `entry` on PYTHONPATH is a Megatron checkout. Such a checkout has no package metadata."""
    try:
        text = (entry / "megatron" / "core" / "package_info.py").read_text()
    except (OSError, ValueError):
        return None
    numbers = [re.search(rf"(?m)^{name}\s*=\s*(\d+)", text) for name in _MEGATRON]
    if not all(numbers):
        return None
    commit, branch = _head(entry)
    version = ".".join(number[1] for number in numbers if number is not None)
    return Package("megatron-core", version, entry, (), commit, branch)


SMI_PATIENCE = 15.0
"""The time limit for npu-smi in seconds. npu-smi hangs if the controller of an NPU does not respond."""
_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)|npu-smi version:\s*(\S+)")
_NPU = re.compile(r"^\|\s*(\d+)\s+([A-Za-z0-9][\w-]*)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP = re.compile(r"^\|\s*\d+(?:\s+\d+)?\s*\|\s*[0-9A-Fa-fx:.NA-]+\s*\|.*?(?<!\d)(\d+)\s*/\s*(\d+)\s*\|\s*$")
_HOLDER = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|([^|]*)\|\s*(\d+)\s*\|\s*$")
_PHYSICAL = re.compile(r"Phy-ID", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip, which PyTorch sees as one device. An A3 card has two chips."""

    card: int
    name: str
    health: str
    used: int = 0
    """The used memory in MB."""
    memory: int = 0
    """The total memory in MB."""
    kind: str = ""
    """`a2`, `a3`, or `a5`. Empty if the chip's name does not show it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses memory on an NPU."""

    card: int
    chip: int
    process: int
    name: str
    memory: int
    """The memory that it uses, in MB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The parsed output of `npu-smi info`."""

    exists: bool
    problem: str = ""
    """The reason why no NPUs are listed."""
    version: str = ""
    """The version of the driver."""
    npus: tuple[Npu, ...] = ()
    holders: tuple[Holder, ...] = ()


def ask_npu_smi(environ: Mapping[str, str]) -> Answer:
    """Run `npu-smi info`, and return its parsed output."""
    command = shutil.which("npu-smi", path=environ.get("PATH", ""))
    if command is None:
        return Answer(exists=False, problem=_("the command npu-smi is missing"))
    try:
        ran = captured([command, "info"], env=dict(environ), timeout=SMI_PATIENCE)
    except subprocess.TimeoutExpired:
        return Answer(
            exists=True,
            problem=_("`npu-smi info` has not ended after {smi_patience:g} s").format(smi_patience=SMI_PATIENCE),
        )
    except OSError as error:
        return Answer(exists=True, problem=f"npu-smi cannot be run: {error.strerror}")
    answer = parse_npu_smi(ran.stdout)
    if answer.npus:
        return answer
    said = [line.strip() for line in (ran.stdout + "\n" + ran.stderr).splitlines() if line.strip(" +-=|")]
    last = " ".join(said[-1].strip("| ").split()) if said else "nothing"
    return Answer(
        True,
        _("`npu-smi info` exits with status {returncode} and prints: {last}").format(
            returncode=ran.returncode, last=last
        ),
        answer.version,
    )


def parse_npu_smi(text: str) -> Answer:
    """Parse the table of `npu-smi info`. For A2, the table has one chip for each card, and for A3, it has two
    chips."""
    version = _VERSION.search(text)
    # A3 chips are called Ascend910, like those of the first generation, but only A3's table has Phy-ID.
    physical = _PHYSICAL.search(text) is not None
    npus: list[Npu] = []
    holders: list[Holder] = []
    for line in text.splitlines():
        if held := _HOLDER.match(line):
            card, chip, process, name, memory = held.groups()
            holders.append(Holder(int(card), int(chip), int(process), name.strip(), int(memory)))
        elif seen := _NPU.match(line):
            card, name, health = seen.groups()
            npus.append(Npu(int(card), name, health, kind=_kind(name, physical)))
        elif npus and (chip_row := _CHIP.match(line)):
            last = npus[-1]
            used, memory = chip_row.groups()
            npus[-1] = Npu(last.card, last.name, last.health, int(used), int(memory), last.kind)
    number = next((part for part in version.groups() if part), "") if version else ""
    return Answer(exists=True, version=number, npus=tuple(npus), holders=tuple(holders))


def _kind(name: str, physical: bool) -> str:
    bare = name.lower().removeprefix("ascend")
    if re.fullmatch(r"910b\d(-\d)?", bare):
        return "a2"
    if bare.startswith(("910_93", "910c")) or (bare == "910" and physical):
        return "a3"
    return "a5" if bare.startswith("950") else ""
