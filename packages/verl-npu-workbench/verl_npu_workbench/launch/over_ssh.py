"""The other hosts, started from this one by the system's `ssh`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from verl_npu import environment
from verl_npu.ascend.variables import SHARED
from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from ..processes import ProcessTree, Started
from .preparation import Prepared

_LINES = 6
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "HF_HOME", "HF_ENDPOINT", "TMPDIR")
_BEGINNINGS = ("ASCEND_", "ATB_", "TOOLCHAIN_", "RAY_", "HF_HUB_", "VLLM_")
_OWN = ("ASCEND_RT_VISIBLE_DEVICES", "RAY_ADDRESS")
"""What is another host's own matter."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The process of `ssh` for one host."""

    host: str
    process: Started

    def check(self) -> None:
        """Raise LaunchError if it has ended before its node took part."""
        status = self.process.process.poll()
        if status is not None:
            raise LaunchError(
                subject=f"ssh {self.host}",
                expected=_("to run until the job has ended"),
                found=_("its end with status {status}: {lines}").format(
                    status=status, lines=" | ".join(self.process.last_lines(_LINES))
                ),
                fix=_("try `ssh {host} true`; it must need no password").format(host=self.host),
            )


def remote_command(prepared: Prepared) -> str:
    """Return the line that the shell of another host is given."""
    request, cluster = prepared.request, prepared.cluster
    options = [
        f"--nodes={cluster.needed}",
        f"--spare={cluster.spare}",
        f"--head={prepared.head}",
        f"--port={request.port}",
    ]
    options += [f"--wait={request.wait:g}", f"--grace={request.grace:g}", "--attached"]
    options += [f"--{name}={value}" for name, value in (("npus", request.npus), ("cpus", request.cpus)) if value]
    options += [] if request.doctor else ["--no-doctor"]
    variables = [f"{name}={value}" for name, value in _passed_on(prepared.environ, prepared.added).items()]
    words = ["env", *variables, sys.executable, "-m", "verl_npu", "launch", *options, "--", *request.command]
    return f"cd {shlex.quote(str(request.folder))} && exec {shlex.join(words)}"


def start(prepared: Prepared, processes: ProcessTree) -> list[Remote]:
    """Start `verl-npu launch` on all other hosts. Raises LaunchError if there is no ssh."""
    ssh = shutil.which("ssh", path=prepared.environ.get("PATH"))
    if ssh is None:
        raise LaunchError(
            subject="--ssh",
            expected=_("the command ssh"),
            found=_("none"),
            fix=_("install it, or start each node by hand"),
        )
    line = remote_command(prepared)
    # A standard input that stays open as long as this process lives tells the other host when it does not.
    return [
        Remote(
            host, processes.start([ssh, "-o", "BatchMode=yes", host, line], prepared.environ, stdin=subprocess.PIPE)
        )
        for host in prepared.cluster.hosts[1:]
    ]


def _passed_on(environ: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return what the user's own shell has here, and a shell that ssh starts has not: each host adds the rest."""
    names = {*(shared.name for shared in SHARED), *_PATHS, *environment.forwarded(environ)}
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in names or name.startswith(_BEGINNINGS)) and name not in _OWN and name not in added
    }
