"""The command `npu-smi info`: the NPUs of a machine, their health, and who holds their memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Answer", "Holder", "Npu", "ask", "parse"]

PATIENCE = 15.0
"""In seconds. It asks each NPU's controller, and hangs where one does not answer."""

_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)|npu-smi version:\s*(\S+)")
_NPU = re.compile(r"^\|\s*(\d+)\s+([A-Za-z0-9][\w-]*)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP = re.compile(r"^\|\s*\d+(?:\s+\d+)?\s*\|\s*[0-9A-Fa-fx:.NA-]+\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$")
_HOLDER = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(.*?)\s*\|\s*(\d+)\s*\|\s*$")
_PHYSICAL = re.compile(r"Phy-ID", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Npu:
    """One chip that PyTorch sees as a device; an A3 card has two."""

    card: int
    name: str
    health: str
    used: int = 0
    """Of its memory, in MB."""
    memory: int = 0
    """In MB."""
    kind: str = ""
    """`a2`, `a3`, `a5`, or empty if the name does not tell."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of an NPU."""

    card: int
    chip: int
    process: int
    name: str
    memory: int
    """In MB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command said."""

    exists: bool
    problem: str = ""
    """Why it gives no NPUs; empty if it does."""
    version: str = ""
    """Of the driver."""
    npus: tuple[Npu, ...] = ()
    holders: tuple[Holder, ...] = ()


def ask(environ: Mapping[str, str]) -> Answer:
    """Run the command."""
    command = shutil.which("npu-smi", path=environ.get("PATH", ""))
    if command is None:
        return Answer(exists=False, problem="there is no command npu-smi")
    try:
        ran = subprocess.run(
            [command, "info"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(exists=True, problem=f"`npu-smi info` has not ended after {PATIENCE:g} s")
    except OSError as error:
        return Answer(exists=True, problem=f"npu-smi cannot be run: {error.strerror}")
    answer = parse(ran.stdout)
    if answer.npus:
        return answer
    said = [line.strip() for line in (ran.stdout + "\n" + ran.stderr).splitlines() if line.strip(" +-=|")]
    last = " ".join(said[-1].strip("| ").split()) if said else "nothing"
    return Answer(True, f"`npu-smi info` ends with status {ran.returncode} and says: {last}", answer.version)


def parse(text: str) -> Answer:
    """Read the table that the command prints, in the shape of A2 (a row for each card) or A3 (two chips a card)."""
    version = _VERSION.search(text)
    # Names alone do not tell: an A3's chips are called Ascend910, as the first generation was. Its table has Phy-ID.
    physical = _PHYSICAL.search(text) is not None
    npus: list[Npu] = []
    holders: list[Holder] = []
    for line in text.splitlines():
        if held := _HOLDER.match(line):
            card, chip, process, name, memory = held.groups()
            holders.append(Holder(int(card), int(chip), int(process), name, int(memory)))
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
