"""A process that starts a server, and ends it with all that it started, as soon as nobody holds its standard input.

    python -m verl_npu_workbench.serving.guardian SECONDS COMMAND…

The kernel closes the other end however `verl-npu serve` ends, by SIGKILL too, when there is nobody else to end vLLM's
engines: they are processes of their own, and outlive the server that started them.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from ..processes import Interrupted, Interruptions, ProcessTree, own_python

_LOOK = 0.2


def guarded(
    command: Sequence[str], environ: Mapping[str, str], output: IO[bytes], patience: float
) -> subprocess.Popen[bytes]:
    """Start a command in the care of such a process, whose status is then the command's, as a shell says it.

    To end the command, close the standard input of what is returned: it has `patience` seconds to end by itself, or
    until SIGTERM. Raises OSError.
    """
    return subprocess.Popen(
        own_python("-m", __name__, f"{patience:g}", *command),
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches us alone
    )


def _guard(command: Sequence[str], patience: float) -> int:
    with Interruptions() as interruptions:
        processes = ProcessTree()
        process = processes.start(command, os.environ, sys.stdout.buffer).process
        try:
            # Nobody writes there: it can be read when it has ended.
            while process.poll() is None and not select.select([sys.stdin], [], [], 0)[0]:
                interruptions.pause(_LOOK)
        except Interrupted:
            pass
        processes.end(patience, lambda: interruptions.impatient)
    status = process.wait()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(_guard(sys.argv[2:], float(sys.argv[1])))
