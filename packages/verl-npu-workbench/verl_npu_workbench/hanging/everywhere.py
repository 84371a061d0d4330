"""Inspects the processes of a Ray job on all hosts; each host inspects its own.

Ray is called in a separate process with a time limit, because Ray's own calls may hang together with the cluster:
    python -m verl_npu_workbench.hanging.everywhere ADDRESS JOB SECONDS
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from verl_npu.errors import CommandError

from ..processes import captured, own_python
from . import host
from .looking import PAUSE, Member, as_json, from_json, members_of

_REACH = 60.0
"""The seconds that other hosts get in addition to the time of the inspection, because a Ray worker must first start on
each of them."""
_LONGEST = 1 << 26


@dataclass(frozen=True, slots=True)
class Seen:
    """The processes of a job on all its hosts."""

    job: str
    members: tuple[Member, ...]
    hosts: tuple[str, ...]
    """The hosts that were inspected, by name or address."""
    silent: tuple[str, ...] = ()
    """The hosts of the Ray cluster that did not respond."""
    problem: str = ""
    """The reason why the other hosts could not be inspected; empty if they were."""

    @property
    def whole(self) -> bool:
        """Return whether all hosts of the job were inspected."""
        return not self.silent and not self.problem


def look(asked: str, pause: float = PAUSE) -> Seen:
    """Inspect the processes of a job on all its hosts. Without Ray, only this host is inspected.

    Raises:
        CommandError: no job matches, or more than one job matches.
    """
    seen = host.processes()
    try:
        job = host.chosen(host.jobs(seen), asked, seen)
    except CommandError:
        address = host.gcs_address(host.Job(asked, "/", ()), seen) if host.is_ray_job(asked) else ""
        if not address:
            raise
        job = host.Job(asked, "/", ())
    address = host.gcs_address(job, seen)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(_ask, address, job.name, pause) if address else None
        here = members_of(job, seen, pause)
        found = others.result() if others else Seen(job.name, (), ())
    # Containers of one machine may see each other's processes.
    members = {(each.pid, each.began): each for each in (*found.members, *here)}
    names = dict.fromkeys([*(each.host for each in here), *found.hosts])
    return Seen(job.name, tuple(members.values()), tuple(names), found.silent, found.problem)


def _ask(address: str, job: str, pause: float) -> Seen:
    command = own_python("-m", __name__, address, job, str(pause))
    try:
        done = captured(command, timeout=pause + _REACH)
    except subprocess.TimeoutExpired:
        return Seen(job, (), (), (), f"Ray at {address} did not answer within {pause + _REACH:.0f} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Seen(job, (), (), (), f"Ray at {address}: {(lines or ['no answer'])[-1][:200]}")
    try:
        answer = json.loads(done.stdout.splitlines()[-1][:_LONGEST])
        members = [from_json(row, name) for name, rows in answer["nodes"].items() for row in rows]
        return Seen(job, tuple(members), tuple(answer["nodes"]), tuple(map(str, answer["silent"])))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return Seen(job, (), (), (), "the other hosts have a different verl-npu, whose answer cannot be read")


def _ask_other_hosts(address: str, job: str, pause: float) -> Mapping[str, object]:
    """Return the results from the other hosts. This function runs in a separate process."""
    ray = importlib.import_module("ray")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    own = ray.get_runtime_context().get_node_id()
    own_addresses = {str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == own}
    task = ray.remote(num_cpus=0, max_retries=0)(_look_here)
    asked = {
        task.options(scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            job, pause
        ): str(node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != own
    }
    nodes: dict[str, object] = {}
    silent = [str(node["NodeManagerAddress"]) for node in ray.nodes() if not node["Alive"]]
    if asked:
        done, late = ray.wait([*asked], num_returns=len(asked), timeout=pause + _REACH / 2)
        silent += [asked[each] for each in late]
        for each in done:
            try:
                nodes[asked[each]] = json.loads(ray.get(each))
            except (ray.exceptions.RayError, ValueError):
                silent.append(asked[each])
    return {"nodes": nodes, "silent": sorted({*silent} - {*nodes} - own_addresses)}


def _look_here(job: str, pause: float) -> str:
    """Inspect the job on another host. Ray's worker there looks this function up by name."""
    seen = host.processes()
    here = [each for each in host.jobs(seen) if each.name == job]
    return json.dumps([as_json(each) for found in here for each in members_of(found, seen, pause)])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask_other_hosts(sys.argv[1], sys.argv[2], float(sys.argv[3]))) + "\n")
