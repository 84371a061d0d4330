"""Finds the source files with Triton kernels in a module, a file, a folder, or a wheel."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

_KERNEL = re.compile(rb"\btriton\.jit\b|triton_jit|\bimport jit\b")
_MOST_BYTES = 4 << 20
"""The largest size of a source file in bytes."""
_MOST_UNPACKED = 4 << 30
"""The largest total size of a wheel's source files in bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Source files, and the root folder from which their dotted module names are derived."""

    root: Path
    files: tuple[Path, ...]


def find(named: str, unpacked: Path) -> Target:
    """Return the files that contain kernels, from a module, a file, a folder, or a wheel. A wheel is unpacked into
    `unpacked`.

    Nothing is imported.

    Raises:
        CommandError: `named` does not exist, or contains no kernels.
    """
    path = Path(named)
    if path.suffix == ".whl" and path.is_file():
        root, top = _unpacked(path, unpacked), unpacked
    elif path.is_dir():
        top = path.resolve()
        root = root_of(top) if (top / "__init__.py").is_file() else top
    elif path.is_file():
        top = path.resolve()
        root = root_of(top)
    else:
        top = _installed(named)
        root = root_of(top)
    candidates = [top] if top.is_file() else sorted(top.rglob("*.py"))
    files = tuple(each for each in candidates if has_kernels(each))
    if not files:
        raise CommandError(
            subject=named,
            expected=_("Python source with Triton kernels (@triton.jit)"),
            found=ngettext(
                "no Triton kernels in {count} file", "no Triton kernels in {count} files", len(candidates)
            ).format(count=len(candidates)),
            fix=_("specify a module, file, folder, or wheel that contains kernels"),
        )
    return Target(root, files)


def has_kernels(path: Path) -> bool:
    """Return whether a file appears to define kernels."""
    try:
        return path.stat().st_size <= _MOST_BYTES and _KERNEL.search(path.read_bytes()) is not None
    except OSError:
        return False


def tops(target: Target) -> Sequence[Path]:
    """Return the top-level packages or modules that contain a target's files."""
    return tuple(dict.fromkeys(target.root / each.relative_to(target.root).parts[0] for each in target.files))


def root_of(path: Path) -> Path:
    """Return the root folder of a file or a package: the folder from which its dotted module name is derived."""
    folder = path if path.is_dir() else path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _installed(named: str) -> Path:
    parts = named.split(".")
    try:
        # Only the top-level name: to find a submodule, Python would import its package.
        found = importlib.util.find_spec(parts[0]) if all(map(str.isidentifier, parts)) else None
    except (ImportError, ValueError):
        found = None
    folders = [Path(each) for each in (found.submodule_search_locations or ())] if found else []
    bases = [folder.joinpath(*parts[1:]) for folder in folders]
    if found and found.origin and len(parts) == 1 and not folders:
        bases.append(Path(found.origin).with_suffix(""))
    for base in bases:
        for path in (base.with_name(f"{base.name}.py"), base):
            if path.is_file() or path.is_dir():
                return path.resolve()
    raise CommandError(
        subject=named,
        expected=_("an installed module, a Python file, a folder, or a wheel"),
        found=_("a name that is none of these"),
        fix=_("check the name, or specify the folder or the wheel of a package that is not installed"),
    )


def _unpacked(wheel: Path, into: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [each for each in archive.infolist() if each.filename.endswith(".py")]
            if sum(each.file_size for each in wanted) > _MOST_UNPACKED:
                raise CommandError(
                    subject=str(wheel),
                    expected=_("a wheel with at most 4 GiB of source code"),
                    found=_("more than 4 GiB of source code"),
                    fix=_("specify a wheel of another package, or a folder that contains the kernels"),
                )
            for each in wanted:
                archive.extract(each, into)
    except (OSError, zipfile.BadZipFile) as error:
        raise CommandError(
            subject=str(wheel),
            expected=_("a wheel"),
            found=str(error),
            fix=_("download the wheel again, or specify its unpacked folder"),
        ) from error
    return into
