"""Checks of the machine: its NPUs and their driver, the limits of a process, and the ports of HCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from verl_npu.findings import Finding, error, ok, skipped, warning
from verl_npu.language import gettext as _

from ..pins import Component, parse_version
from .site import Need, Npu, Site

_FILES = {"driver": "/usr/local/Ascend/driver/version.info", "firmware": "/usr/local/Ascend/firmware/version.info"}
_MOUNTS = (
    "docker run --device /dev/davinci0 … --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc "
    "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi …"
)
_MODELS = {"a2": "A2", "a3": "A3", "a5": "A5", "": _("unknown model")}
_UNSUPPORTED = re.compile(r"(ascend)?(310|910a|910proa|910prob)", re.IGNORECASE)
_HELD = 0.15
"""If more than this share of an NPU's memory is used, another process is assumed to use the NPU. An idle NPU itself
uses 3 to 6 %."""


def judge_driver(site: Site) -> Iterator[Finding]:
    """Check the versions of the driver and the firmware. A driver that is newer than the documented one is
    accepted."""
    if site.virtual:
        yield skipped("driver", _("not needed on virtual NPUs (SIMULATED)"))
        return
    versions = {name: _read(site, path) for name, path in _FILES.items()}
    found = site.smi.version or versions["driver"]
    if not found:
        yield skipped("driver", _("the driver's version cannot be read here"))
        return
    need = Need.of(site, Component.DRIVER)
    version = parse_version(found)
    firmware = _(", firmware {firmware}").format(firmware=versions["firmware"]) if versions["firmware"] else ""
    if version is None or need.at_least_met_by(version):
        yield ok("driver", found + firmware)
        return
    yield warning(
        "driver",
        found + firmware,
        expected=_("{need}, or later").format(need=need),
        why=_("a driver that is older than CANN lacks functions that CANN calls"),
        fix=_("install the driver and firmware (HDK){at} or later on the host, then reboot the host").format(
            at=need.at()
        ),
    )


def judge_npus(site: Site) -> Iterator[Finding]:
    """Check that the machine has NPUs, and that they are healthy, free, and covered by verl's documentation."""
    smi = site.smi
    if site.virtual:
        yield ok("npus", _("{virtual} virtual (SIMULATED)").format(virtual=site.virtual))
    elif not smi.npus:
        yield _none(site)
    else:
        useless = sorted({npu.name for npu in smi.npus if _UNSUPPORTED.match(npu.name)})
        sick = [npu for npu in smi.npus if npu.health.upper() != "OK"]
        if useless:
            yield error(
                "npus",
                f"{len(smi.npus)} x {', '.join(useless)}",
                expected=_("Ascend A2 (910B1 to 910B4), A3, or A5"),
                why=_("neither verl nor vllm-ascend supports this NPU model"),
                fix=_("use a machine with Ascend A2, A3, or A5"),
            )
        elif sick:
            yield _sick(sick, len(smi.npus))
        else:
            counts = Counter((npu.name, npu.kind) for npu in smi.npus)
            named = _(", ").join(f"{count} x {name} ({_MODELS[kind]})" for (name, kind), count in counts.items())
            yield ok("npus", _("{named}, healthy").format(named=named))
        yield from _memory(site)


def _none(site: Site) -> Finding:
    smi = site.smi
    devices = site.at("/dev/davinci_manager").exists()
    if smi.exists:
        return error(
            "npus",
            smi.problem,
            expected=_("the NPUs in the output of `npu-smi info`"),
            why=_("the driver is missing, is not mounted into this container, or does not respond"),
            fix=_MOUNTS if not devices else _("reinstall the driver on the host, or reset the NPUs, then try again"),
        )
    return error(
        "npus",
        _("{problem}, and {devices}").format(
            problem=smi.problem,
            devices=_("no NPU can be examined") if devices else _("no device /dev/davinci_manager"),
        ),
        expected=_("NPUs that this machine or container can see"),
        why=_("a job cannot train here: torch.npu.is_available() is False"),
        fix=_MOUNTS if site.is_ascend else _("VIRTUAL_ASCEND=2 …  # two virtual NPUs; or use a machine that has NPUs"),
    )


def _sick(sick: list[Npu], total: int) -> Finding:
    found = _(", ").join(_("NPU {card}: {health}").format(card=npu.card, health=npu.health) for npu in sick) + _(
        " (of {total})"
    ).format(total=total)
    needed = _("health OK")
    fix = _(
        "npu-smi info -t health -i {card}  # says why; set ASCEND_RT_VISIBLE_DEVICES to leave the card out"
    ).format(card=sick[0].card)
    if all(npu.health.lower() == "warning" for npu in sick):
        return warning("npus", found, expected=needed, why=_("the card reports a minor alarm"), fix=fix)
    return error("npus", found, expected=needed, why=_("operators and collectives on this card fail or hang"), fix=fix)


def _memory(site: Site) -> Iterator[Finding]:
    holders, npus = site.smi.holders, site.smi.npus
    full = [npu for npu in npus if npu.memory and npu.used > _HELD * npu.memory]
    if not holders and not full:
        yield ok("npu-memory", _("free; {memory} MB on each").format(memory=max(npu.memory for npu in npus)))
        return
    if holders:
        held = _(", ").join(
            _("NPU {card}: {h} ({process}) {memory} MB").format(
                card=h.card, h=h.name or _("a process"), process=h.process, memory=h.memory
            )
            for h in holders[:4]
        )
        more = _(" and {count} more").format(count=len(holders) - 4) if len(holders) > 4 else ""
        found, fix = (
            held + more,
            _("kill {process}  # if the process is left from one of your jobs; otherwise wait until it ends").format(
                process=holders[0].process
            ),
        )
    else:
        found = _(", ").join(
            _("NPU {card}: {used} of {memory} MB").format(card=npu.card, used=npu.used, memory=npu.memory)
            for npu in full[:4]
        )
        found += _(", by processes that cannot be seen here")
        fix = _("npu-smi info  # on the host, which sees the processes of all containers")
    yield warning(
        "npu-memory",
        found,
        expected=_("NPUs that no other process uses"),
        why=_(
            "a rollout engine claims the fraction gpu_memory_utilization of an NPU's total memory, so the engine "
            "runs out of memory if other processes use some of this memory"
        ),
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
"""The smallest accepted size of /dev/shm in bytes. Docker's default is 64 MiB. Ray keeps its objects in /dev/shm, and
verl keeps a bucket of weights there."""
_LEAST_FILES = 4096
"""The smallest accepted limit on open files. With 1024, Ray's processes fail with `Too many open files`. Ray's
documentation recommends 65536 on large clusters."""


def judge_shared_memory(site: Site) -> Iterator[Finding]:
    """Check that /dev/shm is large enough for Ray's objects and for the transfer of weights."""
    size = site.shared_memory
    if size is None:
        yield skipped("shared-memory", _("there is no /dev/shm"))
    elif size >= _LEAST_SHARED:
        yield ok("shared-memory", _("{size:.0f} GiB").format(size=size / (1 << 30)))
    else:
        yield warning(
            "shared-memory",
            _("{size} MiB in /dev/shm").format(size=size >> 20),
            expected=_("at least {least_shared} GiB").format(least_shared=_LEAST_SHARED >> 30),
            why=_(
                "Ray keeps its objects in shared memory, and verl passes weights to the rollout engine through "
                "shared memory; if it is full, processes fail with `Bus error`"
            ),
            fix=_("docker run --ipc=host …  # outside of a container: mount -o remount,size=64g /dev/shm"),
        )


def judge_open_files(site: Site) -> Iterator[Finding]:
    """Check that a process may open as many files and sockets as Ray needs."""
    if site.open_files >= _LEAST_FILES:
        yield ok("open-files", str(site.open_files) if site.open_files < 1 << 62 else "unlimited")
    else:
        yield warning(
            "open-files",
            str(site.open_files),
            expected=_("a limit of at least {least_files} open files; on a cluster, 65536 open files").format(
                least_files=_LEAST_FILES
            ),
            why=_(
                "each Ray worker has a socket to every other worker, and sockets count as open files; above the "
                "limit, workers fail with `Too many open files`"
            ),
            fix=_("ulimit -n 65536  # in the shell that runs `ray start`"),
        )


_USUAL = range(60000, 60016)
"""The ports that HCCL uses by default (HCCL_IF_BASE_PORT in its documentation)."""
_BASE, _RANGE = "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE"
_LISTENS = "0A"


def read_ranges(text: str) -> list[range]:
    """Parse port ranges such as `60000-60050,60100`. Return an empty list if the text is not valid."""
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
    """Check that HCCL's ports are free on this host."""
    name = "hccl-ports"
    if site.virtual:
        yield skipped(name, _("not needed on virtual NPUs (SIMULATED)"))
        return
    asked = site.environ.get(_RANGE, "")
    if asked.strip().lower() == "auto":
        yield ok(name, _("any free ports"))
        return
    base = site.environ.get(_BASE, "")
    wanted = read_ranges(asked) if asked else []
    if not wanted:
        first = int(base) if base.isdecimal() and int(base) < 65520 else _USUAL.start
        wanted = [range(first, first + len(_USUAL))]
    taken = sorted(port for port in _listening(site) if any(port in each for each in wanted))
    named = _(", ").join(f"{each.start}-{each.stop - 1}" for each in wanted)
    free = sum(map(len, wanted)) - len(taken)
    # HCCL chooses from a range; without a range, each rank has a fixed port.
    if not taken or (asked and free >= len(_USUAL)):
        yield ok(
            name,
            _("{named} not in use").format(named=named)
            if not taken
            else _("{named}, {free} of them free").format(named=named, free=free),
        )
        return
    yield warning(
        name,
        _("a process listens at {str}").format(str=_(", ").join(map(str, taken[:5]))),
        expected=_("{named} not in use").format(named=named),
        why=_("each HCCL rank listens on one of these ports, and fails if the port is in use"),
        fix=_("export {range}=auto  # or end the process that listens: ss -ltnp 'sport = :{taken}'").format(
            range=_RANGE, taken=taken[0]
        ),
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
