"""The command lines of Ray: one node of its cluster on this host, with ports of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .preparation import Prepared

__all__ = ["PATIENT", "PORTS", "head_command", "worker_command"]

PATIENT = {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300"}
"""What lets Ray's dashboard, which has the job API, come up on a busy host: after half a minute it hangs for ever."""
PORTS = 3
"""How many free ports a node needs that Ray does not choose by itself: dashboard, its agent, Ray's client server."""


def head_command(prepared: Prepared, temp: Path, ports: Sequence[int]) -> list[str]:
    """Return the command that starts the head's node."""
    dashboard, agent, client = ports
    return [
        *_common(prepared, agent),
        "--head",
        f"--port={prepared.request.port}",
        f"--temp-dir={temp}",
        # Not --include-dashboard: with it Ray itself ends where the dashboard takes more than 20 seconds.
        # Whoever reaches the dashboard may run anything, and nobody needs it from outside.
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}",
    ]


def worker_command(prepared: Prepared, ports: Sequence[int]) -> list[str]:
    """Return the command that starts any other host's node."""
    return [*_common(prepared, ports[1]), f"--address={prepared.address}"]


def _common(prepared: Prepared, agent: int) -> list[str]:
    cpus = [f"--num-cpus={prepared.request.cpus}"] if prepared.request.cpus else []
    return [
        sys.executable,
        *("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        f"--node-ip-address={prepared.interface.address}",
        f"--node-name={prepared.name}",
        f"--resources={json.dumps({'NPU': prepared.npus})}",
        *cpus,
        f"--dashboard-agent-listen-port={agent}",
        # By itself each Ray on a host gives its workers 10002 and the following, taken or not; 0 is any free one.
        *("--min-worker-port=0", "--max-worker-port=0"),
    ]
