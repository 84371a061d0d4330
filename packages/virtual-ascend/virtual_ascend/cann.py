"""Stand-ins for the command `npu-smi` and for the CANN folder at $ASCEND_HOME_PATH. Programs read both.

Programs read `Software Version` from `npu-smi info -t board -i <n>`, and `version=` from
`$ASCEND_HOME_PATH/<arch>-linux/ascend_toolkit_install.info`, for example to choose between device IPC and shared
memory. Some programs choose IPC from driver 25.3.rc1 on. The default here is an older driver.
`VIRTUAL_ASCEND_DRIVER_VERSION` and `VIRTUAL_ASCEND_CANN_VERSION` set other versions.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from . import soc
from .cache import check_owner, put, writing
from .variables import HOME, OPERATORS

# A `#!` line cannot hold a path with a space in it, so the shell starts Python.
_NPU_SMI = """#!/bin/sh
''':'
exec {python} -IS "$0" "$@"
'''
import os, sys
count = os.environ.get("VIRTUAL_ASCEND", "")
if not count.isdigit() or count == "0":
    sys.exit("npu-smi (virtual Ascend): VIRTUAL_ASCEND is not set")
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
print("SIMULATED (virtual Ascend)", file=sys.stderr)
if words == ["info"]:
    print("npu-smi {driver}    Version: {driver}")
    for index in range(int(count)):
        print(f"| {{index}}     {soc}   | OK   | 65536 MB |")
elif words[:1] == ["info"] and options.get("-t") == "board":
    index = options.get("-i", "0")
    if not index.isdigit() or int(index) >= int(count):
        sys.exit(f"npu-smi (virtual Ascend): no NPU {{index}}: VIRTUAL_ASCEND={{count}}")
    print(f"\\tNPU ID                         : {{index}}")
    print("\\tSoftware Version               : {driver}")
    print("\\tFirmware Version               : {driver}")
    print("\\tChip Name                      : {soc}")
elif words == ["-v"]:
    print("npu-smi version: {driver}")
elif words == ["info", "-l"]:
    print(f"\\tTotal Count                    : {{count}}")
else:
    known = "info, info -l, info -t board -i N, -v"
    sys.exit(f"npu-smi (virtual Ascend): {{' '.join(words)!r}} is not implemented: only {{known}}")
"""


# The folders that torch_npu looks for in a toolkit.
_PARTS = ("runtime", "compiler", "opp")


def install(cache: Path, environ: MutableMapping[str, str], cann_version: str, driver_version: str) -> None:
    """Put a stand-in for `npu-smi` on PATH, and set ASCEND_HOME_PATH and ASCEND_OPP_PATH to a stand-in for CANN's
    folder, for this process and its children.

    If `npu-smi` or a CANN folder already exists, it is left unchanged, and its stand-in is not installed.

    Raises:
        BuildError: the stand-ins cannot be written to the cache.
    """
    with writing(f"the stand-ins for npu-smi and CANN in {cache}"):
        _install(cache, environ, cann_version, driver_version)


def _install(cache: Path, environ: MutableMapping[str, str], cann_version: str, driver_version: str) -> None:
    folder = _writable(cache) / "stand-ins" / f"cann-{cann_version}-driver-{driver_version}"
    script = folder / "bin" / "npu-smi"
    if shutil.which("npu-smi", path=environ.get("PATH")) is None:
        _write(
            script,
            _NPU_SMI.format(python=shlex.quote(sys.executable), driver=driver_version, soc=soc.NAME),
            mode=0o755,
        )
        environ["PATH"] = os.pathsep.join(filter(None, (environ.get("PATH"), str(script.parent))))
    if not environ.get(HOME):
        arch = f"{platform.machine()}-linux"
        machine = platform.machine()
        facts = {
            "package_name": "Ascend-cann-toolkit",
            "version": cann_version,
            "arch": machine,
            "os": "linux",
            "path": folder / arch,
        }
        info = "".join(f"{name}={value}\n" for name, value in facts.items())
        _write(folder / arch / "ascend_toolkit_install.info", info, mode=0o644)
        for part in _PARTS:
            (folder / part).mkdir(exist_ok=True)
        environ[HOME] = str(folder)
        environ[OPERATORS] = str(folder / "opp")


def _writable(cache: Path) -> Path:
    """Return the cache folder or, if it is read-only, a folder of this user."""
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if os.access(existing, os.W_OK):
        return cache
    own = Path(tempfile.gettempdir()) / f"virtual-ascend-{os.geteuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    check_owner(own)
    return own


def _write(path: Path, text: str, mode: int) -> None:
    # The text has paths in it, which may not be in the encoding of the locale.
    content = os.fsencode(text)
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, content, mode)
