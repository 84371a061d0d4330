"""Runs the doctor on every node of a running Ray cluster, and compares the nodes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_npu.errors import FleetError
from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _

from ..processes import captured, own_python

PATIENCE = 900.0
"""The time limit in seconds for all nodes together. The nodes are examined in parallel."""

REACH = 90.0
"""The seconds to wait for a connection to the cluster. Without this limit, Ray would retry for minutes when no cluster
runs."""

# Subjects that may differ even between identical nodes.
_OWN = ("npu-memory", "hccl-ports", "shared-memory", "open-files")


@dataclass(frozen=True, slots=True)
class Difference:
    """A subject whose findings differ between the nodes."""

    name: str
    found: Mapping[str, tuple[str, ...]]
    """From each finding to the nodes that have it."""


def examine_nodes(arguments: Sequence[str]) -> dict[str, list[Finding]]:
    """Run `verl-npu doctor --json` with these arguments on each node, and return the findings by node address.

    Raises:
        FleetError: Ray is not installed, no Ray cluster is running, or a node does not respond.
    """
    try:
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise _refused(_("the package ray"), f"{type(error).__name__}: {error}", _("install ray")) from error
    address = os.environ.get("RAY_ADDRESS", "auto")
    _reach(address)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        task = ray.remote(num_cpus=0, max_retries=0)(_run)
        asked = {}
        for node in ray.nodes():
            if node["Alive"]:
                place = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                asked[str(node["NodeManagerAddress"])] = task.options(scheduling_strategy=place).remote([*arguments])
        try:
            answers = ray.get([*asked.values()], timeout=PATIENCE)
        except ray.exceptions.RayError as error:
            first = str(error).partition("\n")[0]
            raise _refused(_("an answer from every node"), first, _("install verl-npu on every node")) from error
    finally:
        ray.shutdown()
    return {address: read(answer, address) for address, answer in zip(asked, answers, strict=True)}


def _reach(address: str) -> None:
    """Raise FleetError if a test process cannot join the cluster."""
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR')"
    fix = _("start Ray with `ray start --head` on this host, or set RAY_ADDRESS")
    try:
        tried = captured(own_python("-c", code), timeout=REACH)
    except subprocess.TimeoutExpired as error:
        where = _("the cluster of this host") if address == "auto" else address
        found = _("no answer from {where} within {reach:g} s").format(where=where, reach=REACH)
        raise _refused(_("a running Ray cluster"), found, fix) from error
    if tried.returncode:
        lines = [line.strip() for line in tried.stderr.splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else _("no answer"))
        raise _refused(_("a running Ray cluster"), said, fix)


def _run(arguments: list[str]) -> str:
    """Run the doctor on a node. Ray looks this function up by name, so verl-npu must be installed on that node."""
    command = own_python("-m", "verl_npu", "doctor", "--json", *arguments)
    # Ray hides all NPUs from a task that asks for none, by an empty value; a user's value is not empty.
    hidden = "ASCEND_RT_VISIBLE_DEVICES"
    environ = {name: text for name, text in os.environ.items() if name != hidden or text}
    ran = captured(command, env=environ)
    return ran.stdout or ran.stderr


def as_json(finding: Finding) -> dict[str, str]:
    """Return a finding in the format that `verl-npu doctor --json` prints."""
    return {
        "name": finding.code,
        "verdict": finding.severity.value,
        "found": finding.found,
        "needed": finding.expected,
        "why": finding.why,
        "fix": finding.fix,
    }


def read(answer: str, node: str) -> list[Finding]:
    """Parse the output of a node. Raises FleetError if the output is malformed."""
    try:
        return [
            Finding(
                code=each["name"],
                severity=Severity(each["verdict"]),
                found=each["found"],
                expected=each["needed"],
                why=each["why"],
                fix=each["fix"],
            )
            for each in json.loads(answer)
        ]
    except (ValueError, TypeError, KeyError) as error:
        last = (answer.strip().splitlines() or ["nothing"])[-1]
        raise _refused(
            _("the findings of {node}").format(node=node),
            last,
            _("install the same version of verl-npu on {node}").format(node=node),
        ) from error


def differences(nodes: Mapping[str, Sequence[Finding]]) -> list[Difference]:
    """Return the subjects whose findings differ between the nodes, in the order of the findings."""
    found: dict[str, dict[str, list[str]]] = {}
    names = dict.fromkeys(finding.code for findings in nodes.values() for finding in findings)
    for name in names:
        if name in _OWN:
            continue
        for node, findings in nodes.items():
            said = next((finding.found for finding in findings if finding.code == name), _("no problem"))
            found.setdefault(name, {}).setdefault(said, []).append(node)
    return [
        Difference(name, {said: tuple(where) for said, where in by.items()})
        for name, by in found.items()
        if len(by) > 1
    ]


def _refused(expected: str, found: str, fix: str) -> FleetError:
    return FleetError(subject="--cluster", expected=expected, found=found, fix=fix)
