"""The machine: its NPUs and their driver, what it grants a process, and the ports at which HCCL's ranks listen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ...findings import Finding, error, ok, skipped, warning
from ...pins import Component, parse_version
from .site import Need, Npu, Site

__all__ = [
    "judge_driver",
    "judge_npus",
    "judge_open_files",
    "judge_ports",
    "judge_shared_memory",
    "read_ranges",
]

_FILES = {"driver": "/usr/local/Ascend/driver/version.info", "firmware": "/usr/local/Ascend/firmware/version.info"}
_MOUNTS = (
    "docker run --device /dev/davinci0 … --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc "
    "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi …"
)
_MODELS = {"a2": "A2", "a3": "A3", "a5": "A5", "": "unknown model"}
_OF_NO_USE = re.compile(r"(ascend)?(310|910a|910proa|910prob)", re.IGNORECASE)
_HELD = 0.15
"""An idle NPU holds 3 to 6 % of its memory for itself; more is somebody's, even if the process cannot be seen."""


def judge_driver(site: Site) -> Iterator[Finding]:
    """Which driver and firmware are there; a later driver than the documents name is right, too."""
    if site.virtual:
        yield skipped("driver", "not needed on virtual NPUs (SIMULATED)")
        return
    versions = {name: _read(site, path) for name, path in _FILES.items()}
    found = site.smi.version or versions["driver"]
    if not found:
        yield skipped("driver", "its version cannot be seen here")
        return
    need = Need.of(site, Component.DRIVER)
    version = parse_version(found)
    firmware = f", firmware {versions['firmware']}" if versions["firmware"] else ""
    if version is None or need.at_least_met_by(version):
        yield ok("driver", f"{found}{firmware}")
        return
    yield warning(
        "driver",
        f"{found}{firmware}",
        expected=f"{need}, or later",
        why="a driver that is older than CANN lacks what CANN calls",
        fix=f"install driver and firmware (HDK){need.at()} or later on the host, then reboot it",
    )


def judge_npus(site: Site) -> Iterator[Finding]:
    """Whether there are NPUs, healthy, of a model that verl's documents are about, and free."""
    smi = site.smi
    if site.virtual:
        yield ok("npus", f"{site.virtual} virtual (SIMULATED)")
    elif not smi.npus:
        yield _none(site)
    else:
        useless = sorted({npu.name for npu in smi.npus if _OF_NO_USE.match(npu.name)})
        sick = [npu for npu in smi.npus if npu.health.upper() != "OK"]
        if useless:
            yield error(
                "npus",
                f"{len(smi.npus)} x {', '.join(useless)}",
                expected="Ascend A2 (910B1 to 910B4), A3 or A5",
                why="neither verl nor vllm-ascend trains or serves on this model",
                fix="use a machine with A2 or A3",
            )
        elif sick:
            yield _sick(sick, len(smi.npus))
        else:
            counts = Counter((npu.name, npu.kind) for npu in smi.npus)
            named = ", ".join(f"{count} x {name} ({_MODELS[kind]})" for (name, kind), count in counts.items())
            yield ok("npus", f"{named}, healthy")
        yield from _memory(site)


def _none(site: Site) -> Finding:
    smi = site.smi
    devices = site.at("/dev/davinci_manager").exists()
    if smi.exists:
        return error(
            "npus",
            smi.problem,
            expected="an `npu-smi info` that lists the NPUs",
            why="the driver is not there, not mounted into this container, or does not answer",
            fix=_MOUNTS if not devices else "reinstall the driver on the host, or reset the NPUs, then try again",
        )
    return error(
        "npus",
        f"{smi.problem}, and {'no NPU that can be looked at' if devices else 'no device /dev/davinci_manager'}",
        expected="NPUs that this machine or container can see",
        why="a job cannot train here: torch.npu.is_available() is False",
        fix=_MOUNTS if site.is_ascend else "VIRTUAL_ASCEND=2 …  # two virtual NPUs; or use a machine that has NPUs",
    )


def _sick(sick: list[Npu], total: int) -> Finding:
    found = ", ".join(f"NPU {npu.card}: {npu.health}" for npu in sick) + f" (of {total})"
    needed = "health OK"
    fix = f"npu-smi info -t health -i {sick[0].card}  # says why; leave the card out with ASCEND_RT_VISIBLE_DEVICES"
    if all(npu.health.lower() == "warning" for npu in sick):
        return warning("npus", found, expected=needed, why="a minor alarm is open on the card", fix=fix)
    return error("npus", found, expected=needed, why="operators and collectives on this card fail or hang", fix=fix)


def _memory(site: Site) -> Iterator[Finding]:
    holders, npus = site.smi.holders, site.smi.npus
    full = [npu for npu in npus if npu.memory and npu.used > _HELD * npu.memory]
    if not holders and not full:
        yield ok("npu-memory", f"free; {max(npu.memory for npu in npus)} MB on each")
        return
    if holders:
        held = ", ".join(f"NPU {h.card}: {h.name or 'a process'} ({h.process}) {h.memory} MB" for h in holders[:4])
        more = f" and {len(holders) - 4} more" if len(holders) > 4 else ""
        found, fix = held + more, f"kill {holders[0].process}  # if it is yours and left over; or wait for its end"
    else:
        found = ", ".join(f"NPU {npu.card}: {npu.used} of {npu.memory} MB" for npu in full[:4])
        found += ", by processes that cannot be seen here"
        fix = "npu-smi info  # on the host, which sees the processes of all containers"
    yield warning(
        "npu-memory",
        found,
        expected="NPUs that nobody else uses",
        why="a rollout engine takes the share that gpu_memory_utilization says of the whole memory, and runs out",
        fix=fix,
    )


def _read(site: Site, path: str) -> str:
    try:
        text = site.at(path).read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"(?mi)^version\s*=\s*(\S+)", text)
    return found[1] if found else ""


_LEAST_SHARED = 2 << 30
"""In bytes. Docker's default is 64 MiB; Ray puts its objects, and verl the weights of a bucket, there."""
_LEAST_FILES = 4096
"""Ray's own documents ask for 65536 on large clusters, and its processes end with `Too many open files` at 1024."""


def judge_shared_memory(site: Site) -> Iterator[Finding]:
    """Whether /dev/shm is large enough for Ray's objects and for weights that are handed over in it."""
    size = site.shared_memory
    if size is None:
        yield skipped("shared-memory", "there is no /dev/shm")
    elif size >= _LEAST_SHARED:
        yield ok("shared-memory", f"{size / (1 << 30):.0f} GiB")
    else:
        yield warning(
            "shared-memory",
            f"{size >> 20} MiB in /dev/shm",
            expected=f"at least {_LEAST_SHARED >> 30} GiB",
            why="Ray keeps its objects there, and verl hands weights to the rollout engine in it: `Bus error` if full",
            fix="docker run --ipc=host …  # outside of a container: mount -o remount,size=64g /dev/shm",
        )


def judge_open_files(site: Site) -> Iterator[Finding]:
    """Whether a process may have as many files and sockets open as Ray needs."""
    if site.open_files >= _LEAST_FILES:
        yield ok("open-files", str(site.open_files) if site.open_files < 1 << 62 else "unlimited")
    else:
        yield warning(
            "open-files",
            str(site.open_files),
            expected=f"at least {_LEAST_FILES}; 65536 on a cluster",
            why="each of Ray's workers has a socket to every other: `Too many open files`",
            fix="ulimit -n 65536  # in the shell that runs `ray start`",
        )


_USUAL = range(60000, 60016)
"""Where HCCL listens if it is told nothing (HCCL_IF_BASE_PORT in its documentation)."""
_BASE, _RANGE = "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE"
_LISTENS = "0A"


def read_ranges(text: str) -> list[range]:
    """Read `60000-60050,60100`; an empty list if it cannot be read."""
    ranges = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if found is None:
            return []
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last <= 65535:
            return []
        ranges.append(range(first, last + 1))
    return ranges


def judge_ports(site: Site) -> Iterator[Finding]:
    """Whether the ports of HCCL on this host are free."""
    name = "hccl-ports"
    if site.virtual:
        yield skipped(name, "not needed on virtual NPUs (SIMULATED)")
        return
    asked = site.environ.get(_RANGE, "")
    if asked.strip().lower() == "auto":
        yield ok(name, "any that are free")
        return
    base = site.environ.get(_BASE, "")
    wanted = read_ranges(asked) if asked else []
    if not wanted:
        first = int(base) if base.isdecimal() and int(base) < 65520 else _USUAL.start
        wanted = [range(first, first + len(_USUAL))]
    taken = sorted(port for port in _listening(site) if any(port in each for each in wanted))
    named = ", ".join(f"{each.start}-{each.stop - 1}" for each in wanted)
    free = sum(map(len, wanted)) - len(taken)
    # A range is one to choose from; without one, each rank has its port.
    if not taken or (asked and free >= len(_USUAL)):
        yield ok(name, f"{named} free" if not taken else f"{named}, {free} of them free")
        return
    yield warning(
        name,
        f"somebody listens at {', '.join(map(str, taken[:5]))}",
        expected=f"{named} free",
        why="each rank of HCCL listens at one of these, and ends with an error if it is taken",
        fix=f"export {_RANGE}=auto  # or end what listens: ss -ltnp 'sport = :{taken[0]}'",
    )


def _listening(site: Site) -> set[int]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = site.at(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > 3 and columns[3] == _LISTENS:
                found.add(int(columns[1].rpartition(":")[2], 16))
    return found
