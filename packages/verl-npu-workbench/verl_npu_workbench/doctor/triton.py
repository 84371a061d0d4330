"""Checks of Triton. triton-ascend and upstream's triton install into the same folder, and each release of
triton-ascend is built for particular releases of CANN."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verl_npu.findings import Finding, error, ok, skipped, warning
from verl_npu.language import gettext as _

from ..pins import Component, parse_version
from .cann import toolkit
from .site import Need, Package, Site

CANN_OF: Mapping[str, Sequence[str]] = {
    "3.2.0rc4": ("8.3.RC1", "8.3.RC2", "8.5.0.alpha001"),
    "3.2.0": ("8.5.0",),
    "3.2.1": ("9.0.0",),
}
"""From each release of triton-ascend to the releases of CANN that its installation guide names."""
_GUIDE = "https://gitcode.com/Ascend/triton-ascend/blob/main/docs/zh/installation_guide.md"


def judge_triton(site: Site) -> Iterator[Finding]:
    """Check that triton-ascend's files have not been overwritten, and that a matching CANN release is installed."""
    yield _judge_files(site)
    yield _judge_cann(site)


def _judge_files(site: Site) -> Finding:
    triton, ascend = site.package(Component.TRITON), site.package(Component.TRITON_ASCEND)
    if triton is None:
        return skipped("triton", _("not installed"))
    need = Need.of(site, Component.TRITON)
    again = Need.of(site, Component.TRITON_ASCEND).exact or (ascend.version if ascend else "")
    fix = f"pip uninstall -y triton triton-ascend && pip install triton-ascend{f'=={again}' if again else ''}"
    if site.virtual or (ascend is None and not (site.is_ascend and need.claims)):
        return skipped("triton", _("{triton}, without triton-ascend").format(triton=triton))
    if ascend is None:
        return warning(
            "triton",
            _("{triton} without triton-ascend").format(triton=triton),
            expected=str(Need.of(site, Component.TRITON_ASCEND)) or "triton-ascend",
            why=_("this triton is made for CUDA, so Triton kernels find no driver on NPUs"),
            fix=fix,
        )
    lost = _overwritten(ascend, triton)
    if lost or not _has_backend(ascend):
        return error(
            "triton",
            (
                _("{triton} has overwritten triton-ascend {ascend}: {file} is from upstream's triton")
                if lost
                else _("{triton} has overwritten triton-ascend {ascend}: triton/backends/ascend is missing")
            ).format(triton=triton, ascend=ascend, file=lost),
            expected=_("an intact installation of triton-ascend"),
            why=_("without triton-ascend's files, Triton kernels fail with `0 active drivers`"),
            fix=fix,
        )
    if need.supported and triton.parsed is not None and need.met_by(triton.parsed):
        return ok("triton", _("{triton}, which the documentation of {pin} lists").format(triton=triton, pin=need.pin))
    if _is_required(ascend, triton):
        return ok("triton", _("{triton}, which triton-ascend {ascend} requires").format(triton=triton, ascend=ascend))
    return warning(
        "triton",
        _("{triton} together with triton-ascend {ascend}").format(triton=triton, ascend=ascend),
        expected=str(need) or _("only triton-ascend"),
        why=_(
            "triton and triton-ascend install files into the same folder, and one package has overwritten files of "
            "the other"
        ),
        fix=fix,
    )


def _has_backend(package: Package) -> bool:
    folder = Path(package.folder) / "triton"
    return not folder.is_dir() or (folder / "backends" / "ascend").is_dir()


def _is_required(ascend: Package, triton: Package) -> bool:
    """Return whether triton-ascend itself requires this Triton, as it does from 3.2.1 on. In this case, triton-ascend
    is installed over Triton's files."""
    for text in ascend.requires:
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            continue
        holds = asked.marker is None or asked.marker.evaluate()
        if canonicalize_name(asked.name) == "triton" and holds:
            return triton.parsed is None or triton.parsed in asked.specifier
    return False


def _overwritten(ascend: Package, triton: Package) -> str:
    """Return a file of triton-ascend that upstream's triton has overwritten, or an empty string if there is none, or
    if pip's records do not show it."""
    own, theirs = _recorded(ascend), _recorded(triton)
    for name, known in own.items():
        if name in theirs and theirs[name] != known and _hash(ascend.folder / name) == theirs[name]:
            return name
    return ""


def _recorded(package: Package) -> Mapping[str, str]:
    """Return the hashes of a package's Python files, as pip recorded them."""
    name = package.name.lower().replace("-", "_")
    for path in package.folder.glob(f"{name}-{package.version}.dist-info/RECORD"):
        rows = csv.reader(path.read_text(errors="replace").splitlines())
        return {row[0]: row[1] for row in rows if len(row) > 1 and row[0].endswith(".py") and row[1]}
    return {}


def _hash(path: Path) -> str:
    try:
        found = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return ""
    return f"sha256={base64.urlsafe_b64encode(found).rstrip(b'=').decode()}"


def _judge_cann(site: Site) -> Finding:
    ascend, found = site.package(Component.TRITON_ASCEND), toolkit(site)
    if ascend is None or site.virtual or found is None or not found.version:
        return skipped("triton-cann", _("triton-ascend and CANN are not both installed"))
    named = CANN_OF.get(ascend.version)
    both = _("triton-ascend {ascend} with CANN {cann}").format(ascend=ascend, cann=found.version)
    if named is None:
        return skipped(
            "triton-cann", _("{both}: triton-ascend's guide names no CANN for this release").format(both=both)
        )
    if parse_version(found.version) in map(parse_version, named):
        return ok("triton-cann", both)
    need = Need.of(site, Component.TRITON_ASCEND)
    if need.supported and ascend.parsed is not None and need.met_by(ascend.parsed):
        return skipped("triton-cann", _("{both}: this is not the CANN of {pin}").format(both=both, pin=need.pin))
    others = [each for each, canns in CANN_OF.items() if parse_version(found.version) in map(parse_version, canns)]
    return warning(
        "triton-cann",
        both,
        expected=_("CANN {named} ({guide})").format(named=_(" or ").join(named), guide=_GUIDE),
        why=_(
            "CANN's compiler reads the output of triton-ascend, and each release of triton-ascend is built for "
            "certain releases of CANN"
        ),
        fix=f"pip install triton-ascend=={others[0]}"
        if others
        else _("install CANN {named}, or a triton-ascend release whose documentation lists the installed CANN").format(
            named=named[0]
        ),
    )
