"""Installs Ascend's released Triton compiler, triton-ascend and ascendnpu-ir, into a separate folder.

The compiler is never installed beside the user's packages, because triton-ascend would replace upstream's Triton
there.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu import environment, progress
from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from ..doctor.triton import CANN_OF
from ..processes import captured, own_python

FRONT, BACK = "triton-ascend", "ascendnpu-ir"
_DEPENDENCIES = ("numpy>=1.26,<3", "pybind11>=2.13,<4")
"""Packages that triton-ascend imports."""
_PYTHONS = ((3, 11), (3, 10))
"""The Python versions that both triton-ascend and verl-npu support."""
_UNNEEDED_FILES = ("ascendnpuir/bin/bishengir-opt", "ascendnpuir/bin/bishengir-opt-a5")
_DONE = "toolchain.json"
_QUERY = "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.prefix, sys.base_prefix]))"
_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A release of triton-ascend and a release of ascendnpu-ir that are used together, and the corresponding CANN
    release."""

    front: str
    back: str
    cann: str
    said_by: str
    """The source that states which CANN release the front end corresponds to."""

    @property
    def text(self) -> str:
        return f"{FRONT} {self.front} with {BACK} {self.back}"


_GUIDE = _("triton-ascend's installation guide")
PAIRS: Sequence[Pair] = tuple(
    Pair(front, back, ", ".join(CANN_OF[front]), _GUIDE)
    for front, back in (("3.2.0", "1.2.0"), ("3.2.0", "1.1.0"), ("3.2.0", "1.0.0"), ("3.2.0rc4", "1.0.0"))
)


class Soc(enum.Enum):
    """The NPU generations that kernels can be compiled for."""

    A2 = "A2"
    A3 = "A3"
    ASCEND_950 = "950"

    @property
    def question(self) -> Mapping[str, object]:
        """The NPU properties that are passed to the compiler."""
        return _SOCS[self]


_SOCS: Mapping[Soc, Mapping[str, object]] = {
    Soc.A2: {"arch": "Ascend910B3", "cores": 20, "options": {}},
    Soc.A3: {"arch": "Ascend910_9392", "cores": 24, "options": {}},
    # The defaults that triton-ascend sets when it runs on this NPU.
    Soc.ASCEND_950: {
        "arch": "Ascend910_9589",
        "cores": 32,
        "options": {
            "compile_on_910_95": True,
            "multibuffer": False,
            "enable_auto_bind_sub_block": False,
            "enable_select_analysis": True,
        },
    },
}


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter that triton-ascend supports."""

    program: str
    version: tuple[int, int]
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An installed compiler."""

    folder: Path
    pair: Pair
    python: Python

    @property
    def id(self) -> str:
        """The versions on which a verdict depends, as one string."""
        return f"{self.pair.text}, Python {self.python.version[0]}.{self.python.version[1]}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the compiler process."""
        own = Path(__file__).resolve().parents[2]
        return {
            "PATH": os.pathsep.join([str(self.folder / "ascendnpuir" / "bin"), "/usr/bin", "/bin"]),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(own)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "VERL_NPU": "off",
            "LANG": "C.UTF-8",
            "HOME": "/tmp",
            "TRITON_CACHE_DIR": "/tmp/triton",
            **{name: value for name, value in os.environ.items() if name in _COMPILER_VARIABLES},
        }

    def command(self) -> list[str]:
        """Return the command line that starts the compiler process."""
        return [self.python.program, *own_python("-m", "verl_npu_workbench.kernels.inside")[1:]]


_COMPILER_VARIABLES = ("TRITON_ALL_BLOCKS_PARALLEL", "TRITON_DISABLE_FFTS")
"""The user's variables that change the compiler's behaviour."""


def home() -> Path:
    """Return the folder that caches compilers and verdicts."""
    named = environment.KERNELS.text()
    return Path(named).expanduser() if named else Path.home() / ".cache" / "verl-npu" / "kernels"


def prepare(pair: Pair, python: str = "", wheels: Path | None = None) -> Toolchain:
    """Return the compiler for a pair of releases. If the compiler is not installed, install it with pip, using the
    user's pip configuration.

    Args:
        pair: the two releases.
        python: the interpreter to run the compiler in (default: the first supported one that is found).
        wheels: a folder with the wheels, for a machine without network access.

    Raises:
        CommandError: the compiler cannot be installed, or its files are damaged.
    """
    chosen = _python(python)
    folder = checked(home()) / "compilers" / f"{pair.front}-{pair.back}-py{chosen.version[0]}{chosen.version[1]}"
    if not (folder / _DONE).is_file():
        _install(pair, chosen, folder, wheels)
    damaged = _damaged(folder)
    if damaged:
        raise CommandError(
            subject=str(folder),
            expected=_("the complete compiler, as it was installed"),
            found=_("{file} is missing or has an unexpected size").format(file=damaged),
            fix=_("delete this folder; the next run installs the compiler again"),
        )
    return Toolchain(folder, pair, chosen)


def _damaged(folder: Path) -> str:
    """Return a file that differs from pip's RECORD, or an empty string if no file differs. Without this check, a
    damaged compiler would crash on kernels."""
    for record in folder.glob("*.dist-info/RECORD"):
        for line in record.read_text(errors="replace").splitlines():
            name, _unused, size = (*line.rsplit(",", 2), "", "")[:3]
            # Scripts are elsewhere, and Python rewrites its .pyc files.
            if not size.isdigit() or name.startswith("..") or name.endswith(".pyc") or name in _UNNEEDED_FILES:
                continue
            path = folder / name.strip('"')
            if not path.is_file() or path.stat().st_size != int(size):
                return name
    return ""


def checked(folder: Path) -> Path:
    """Create a folder, and return its path. Raise CommandError if other users can write to the folder, because
    programs in the folder are executed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise CommandError(
            subject=str(folder),
            expected=_("a folder that only you can write to, because compilers in this folder are executed"),
            found=_("a folder that belongs to {owner} and has the mode {mode}").format(
                owner=found.st_uid, mode=f"{found.st_mode & 0o777:o}"
            ),
            fix=_("run chmod go-w {folder}, or set {name} to another folder").format(
                folder=folder, name=environment.KERNELS.name
            ),
        )
    return folder


def _python(named: str) -> Python:
    candidates = [named] if named else [sys.executable, *(f"python{a}.{b}" for a, b in _PYTHONS)]
    seen = []
    for each in candidates:
        program = shutil.which(each)
        found = _ask(program) if program else None
        if found is not None and found.version in _PYTHONS:
            return found
        seen.append(
            f"{each} ({'.'.join(map(str, found.version))})" if found else _("{name} (not found)").format(name=each)
        )
    raise CommandError(
        subject=_("the interpreter that triton-ascend runs in"),
        expected=_("Python 3.10 or 3.11, the only versions that triton-ascend supports"),
        found=_(", ").join(seen),
        fix=_("specify an interpreter with --python PATH"),
    )


def _ask(program: str) -> Python | None:
    done = captured([program, "-I", "-c", _QUERY], timeout=60)
    try:
        version, *prefixes = json.loads(done.stdout)
    except ValueError:
        return None
    return Python(os.path.abspath(program), (version[0], version[1]), tuple(dict.fromkeys(prefixes)))


def _install(pair: Pair, python: Python, folder: Path, wheels: Path | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    wanted = [f"{FRONT}=={pair.front}", f"{BACK}=={pair.back}", *_DEPENDENCIES]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as made,
        progress.step(_("installing {pair}, once").format(pair=pair.text)),
    ):
        into = Path(made, "toolchain")
        command = [*_installer(python), "--no-deps", "--target", str(into), *source, *wanted]
        try:
            done = captured(command, timeout=_SECONDS)
            said = (done.stderr or done.stdout).strip().splitlines()
            failed = bool(done.returncode)
        except subprocess.TimeoutExpired:
            said, failed = [_("still downloading after {minutes} min").format(minutes=round(_SECONDS / 60))], True
        if failed:
            raise _missing(pair, python, said)
        for each in _UNNEEDED_FILES:
            (into / each).unlink(missing_ok=True)
        content = {"front": pair.front, "back": pair.back, "python": list(python.version)}
        (into / _DONE).write_text(json.dumps(content))
        if not folder.exists():
            into.rename(folder)


def _installer(python: Python) -> list[str]:
    has_pip = (
        subprocess.run([python.program, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )
    if has_pip:
        return [python.program, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", python.program]
    raise CommandError(
        subject=_("downloading the compiler"),
        found=_("the Python interpreter {program} has no pip, and uv is not installed").format(program=python.program),
        fix="pip install 'verl-npu-workbench[kernels]'",
    )


def _missing(pair: Pair, python: Python, said: Sequence[str]) -> CommandError:
    wrong = [each for each in said if "error" in each.lower()] or list(said) or ["nothing"]
    version = ".".join(map(str, python.version))
    names = f"'{FRONT}=={pair.front}' '{BACK}=={pair.back}' {' '.join(repr(each) for each in _DEPENDENCIES)}"
    return CommandError(
        subject=_("Ascend's Triton compiler"),
        expected=_("{pair} for Python {version}, in the package index that pip uses").format(
            pair=pair.text, version=version
        ),
        found=" ".join(wrong[-1].split())[:300],
        fix=_(
            "run `{command}` on a machine with network access, copy the folder `wheels` to this machine, and "
            "rerun verl-npu with `--wheels wheels`"
        ).format(command=f"pip download --no-deps --only-binary :all: --python-version {version} -d wheels {names}"),
    )
