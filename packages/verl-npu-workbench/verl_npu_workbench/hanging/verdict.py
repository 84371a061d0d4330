"""Judges from the activities of all processes whether a job hangs, and because of which process.

The verdict is HANGS only if no process can end the wait: a process is stopped, a rank has ended or is idle while
others wait for it, the ranks are in different collectives, or all processes wait for each other. The verdict is STANDS
if a process waits for something outside the job, or cannot be inspected. A later inspection may then tell more.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from .doing import FOR_OTHERS, Kind
from .looking import Member


class Verdict(enum.Enum):
    """The state of a job."""

    WORKS = _("works")
    """At least one process made progress between the inspections."""
    STANDS = _("stands still")
    """No process made progress, but one waits for something that may still happen."""
    HANGS = _("hangs")
    """No process made progress, and none can make progress."""
    IDLE = _("idle")
    """No process has anything to do."""
    UNKNOWN = _("unknown")
    """The processes cannot be inspected."""


@dataclass(frozen=True, slots=True)
class Said:
    """The verdict on a job, with the reasons for the verdict."""

    verdict: Verdict
    odd: tuple[Member, ...]
    """The processes that the others wait for."""
    waiting: tuple[Member, ...]
    """The processes that wait for others."""
    why: str
    to_do: str


_RANK_KINDS = (Kind.COLLECTIVE, Kind.MEETING, Kind.SYNC)
_OUTSIDE = (Kind.OUTSIDE, Kind.SLEEP, Kind.DEVICE, Kind.CODE, Kind.QUEUE, Kind.UNSEEN, Kind.COMPILE)


def judge(members: Sequence[Member], whole: bool = True) -> Said:
    """Judge a job from its processes. `whole` tells whether the processes of all hosts are included."""
    alive = [each for each in members if each.state not in "ZX"]
    seen = [each for each in alive if each.kind is not Kind.UNSEEN]
    for rule in (_stopped, _gone, _unseen, _works, _ranks, _deadlock, _outside):
        said = rule(alive, seen, whole)
        if said is not None:
            return said
    waiting = _waiting(seen)
    if waiting:
        why = _("all visible processes wait for others, and none made progress")
        return Said(Verdict.STANDS, (), tuple(waiting), why, _LATER)
    why = _("no process of the job has anything to do")
    return Said(Verdict.IDLE, (), (), why, _("read the last output of the job's driver"))


_LATER = _(
    "run this command again in some minutes: if the same process is still at the same line, the "
    "process hangs there. This command has not stopped or changed anything"
)


def _waiting(members: Iterable[Member]) -> list[Member]:
    return [each for each in members if each.kind in FOR_OTHERS]


def _stopped(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    stopped = [each for each in alive if each.state in "Tt"]
    if not stopped:
        return None
    ids = " ".join(str(each.pid) for each in stopped)
    host = stopped[0].host if len({each.host for each in stopped}) == 1 else ""
    call = _("`kill -CONT {ids}` on {host}").format(ids=ids, host=host) if host else f"`kill -CONT {ids}`"
    why = _(
        "a signal (SIGSTOP, Ctrl-Z, or a debugger) stopped the process, and the process does not run "
        "until it is continued"
    )
    to_do = _(
        "run {call}, and the job continues; if a debugger holds the process, continue it in the debugger"
    ).format(call=call)
    return Said(Verdict.HANGS, tuple(stopped), tuple(_waiting(alive)), why, to_do)


def _gone(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Judge a group of ranks that waits for a rank whose process has ended."""
    for group, ranks in _groups(alive).items():
        size = ranks[0].size
        here = {each.rank for each in ranks}
        complete = whole or ranks[0].local == size
        waiting = [each for each in ranks if each.kind in _RANK_KINDS and not each.moved]
        missing = sorted({*range(size)} - here)
        if complete and missing and waiting and size <= _MOST_RANKS:
            named: str = _(", ").join(map(str, missing[:8]))
            named = _("{named} and more").format(named=named) if len(missing) > 8 else named
            why = _(
                "the process of rank {named} of {size} (group {group}) is gone, and the others wait for it"
            ).format(named=named, size=size, group=group)
            to_do = _("end the job, and read that rank's log and Ray's logs with `verl-npu doctor --log LOG`")
            return Said(Verdict.HANGS, (), tuple(waiting), why, to_do)
    return None


_MOST_RANKS = 100_000


def _groups(members: Iterable[Member]) -> dict[str, list[Member]]:
    found: dict[str, list[Member]] = {}
    for each in members:
        if each.rank >= 0 and each.size > 1 and not _is_child_of_rank(each, members):
            found.setdefault(each.group, []).append(each)
    return found


def _is_child_of_rank(member: Member, members: Iterable[Member]) -> bool:
    """Return whether a process is a child of a rank, such as a data loader's worker. Such a child inherits the
    variable
    RANK."""
    return any(
        (each.host, each.pid) == (member.host, member.parent)
        and each.rank == member.rank
        and each.group == member.group
        for each in members
    )


def _unseen(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    if seen or not alive:
        return None
    problem = Counter(each.problem for each in alive).most_common(1)[0][0]
    busy = [each for each in alive if each.busy > 0.2]
    why = _(
        "{problem}; without py-spy, this command sees only the kernel's view, which does not "
        "distinguish waiting from slow work"
    ).format(problem=problem)
    if busy:
        why = _("{why}. {busy} of {all} processes use a processor").format(why=why, busy=len(busy), all=len(alive))
    return Said(Verdict.UNKNOWN, (), (), why, _("run `pip install py-spy` in the job's environment, and try again"))


def _works(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    working = [each for each in alive if each.works and not _is_launcher(each, alive)]
    if not working:
        return None
    best = sorted(working, key=lambda each: (each.kind not in (Kind.CODE, Kind.COMPILE), -each.busy))
    waiting = [each for each in _waiting(alive) if not each.works]
    slow = _(
        "this process made progress while it was inspected, and the others wait for it: the job is "
        "slow, but does not hang"
    )
    why = slow if waiting else _("this process made progress while it was inspected")
    to_do = _("wait; `verl-npu watch LOG` shows how long a step takes")
    return Said(Verdict.WORKS, tuple(best[:3]), tuple(waiting), why, to_do)


def _ranks(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Judge groups in which some ranks wait while other ranks do something else or wait at another place."""
    for ranks in _groups(seen).values():
        waiting = [each for each in ranks if each.kind in _RANK_KINDS]
        others = [each for each in ranks if each.kind not in _RANK_KINDS]
        if waiting and others:
            return _others(waiting, others, alive)
        if len(waiting) > 1 and len({(each.kind, each.call, each.place) for each in waiting}) > 1:
            return _different(waiting)
    return None


def _others(waiting: Sequence[Member], others: Sequence[Member], alive: Sequence[Member]) -> Said:
    calls = _(", ").join(sorted({_at(each) for each in waiting})[:3])
    idle = [each for each in others if each.kind is Kind.IDLE]
    locked = [each for each in others if each.kind in (Kind.LOCK, Kind.RAY)]
    odd = idle or locked or list(others)
    numbers = ", ".join(str(each.rank) for each in sorted(odd, key=lambda each: each.rank)[:8])
    start = _("{ranks} wait in {calls}, but rank {numbers} {does}").format(
        ranks=_ranks_of(waiting), calls=calls, numbers=numbers, does=odd[0].kind.value
    )
    if idle:
        to_do = _(
            "end the job. The missing rank does not take part in the collective: in the code above that "
            "line, look for an `if` that not all ranks take, and for a rank with less data"
        )
        return Said(Verdict.HANGS, tuple(odd), tuple(waiting), start, to_do)
    if locked:
        to_do = _(
            "end the job, and look at the code at {place}, where the process waits: no process made progress"
        ).format(place=odd[0].place)
        return Said(Verdict.HANGS, tuple(odd), tuple(waiting), start, to_do)
    helper = _helper(odd, alive)
    if helper is not None:
        start = _("{start}, on {name}, which {does} at {place}").format(
            start=start, name=helper.name, does=helper.kind.value, place=helper.place
        )
        odd = [*odd, helper]
    return Said(Verdict.STANDS, tuple(odd), tuple(waiting), start, _LATER)


def _helper(odd: Sequence[Member], alive: Sequence[Member]) -> Member | None:
    """Return the child process that a process waits for, such as a worker of its data loader."""
    waits = {(each.host, each.pid) for each in odd if each.kind in (Kind.PROCESS, Kind.OUTSIDE, Kind.ENGINE)}
    children = [each for each in alive if (each.host, each.parent) in waits]
    told = [each for each in children if each.kind not in (Kind.IDLE, Kind.QUEUE, Kind.UNSEEN)]
    return next(iter(told), None)


def _different(waiting: Sequence[Member]) -> Said:
    places: dict[str, list[Member]] = {}
    for each in waiting:
        places.setdefault(_at(each), []).append(each)
    fewest = min(places.values(), key=lambda ranks: (len(ranks), -ranks[0].rank))
    said = _("; ").join(
        _("rank {numbers} in {call}").format(numbers=_(", ").join(str(each.rank) for each in ranks[:8]), call=call)
        for call, ranks in [*places.items()][:4]
    )
    why = _("the ranks are in different collectives: {said}").format(said=said)
    to_do = _("end the job. The ranks run different code: above these lines, look for an `if` that not all ranks take")
    return Said(Verdict.HANGS, tuple(fewest), tuple(waiting), why, to_do)


def _deadlock(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Judge a job in which every active process waits for a lock or, through Ray, for another process."""
    acting = [each for each in seen if each.kind is not Kind.IDLE and not _is_launcher(each, alive)]
    locked = [each for each in acting if each.kind is Kind.LOCK]
    outside = [each for each in acting if each.kind in _OUTSIDE]
    rays = [each for each in acting if each.kind is Kind.RAY]
    if outside or len(seen) < len(alive) or not whole:
        return None
    if locked:
        why = _(
            "this process waits for a lock, no process made progress, and no process waits for anything "
            "outside the job"
        )
        to_do = _(
            "end the job. At {place}, another thread holds the lock and waits, too, or the lock was never released"
        ).format(place=locked[0].place)
        return Said(Verdict.HANGS, tuple(locked), tuple(_waiting(acting)), why, to_do)
    workers = [each for each in rays if "ray::" in each.title]
    if rays and len(rays) == len(acting) and workers:
        why = _(
            "the processes wait for each other in ray.get: an actor waits for its own task, or two "
            "actors wait for each other"
        )
        to_do = _(
            "end the job. An actor runs one task at a time: in an actor's method, do not call ray.get "
            "for a result of that actor itself, or of another actor that waits for that actor"
        )
        return Said(Verdict.HANGS, tuple(workers), tuple(rays), why, to_do)
    collective = [each for each in acting if each.kind in _RANK_KINDS]
    if collective:
        return _all_together(collective)
    return None


def _is_launcher(member: Member, alive: Sequence[Member]) -> bool:
    """Return whether a process only starts and watches the other processes, as torchrun does."""
    is_parent = any((each.host, each.parent) == (member.host, member.pid) for each in alive)
    return is_parent and member.rank < 0 and "ray::" not in member.title


def _all_together(collective: Sequence[Member]) -> Said:
    first = collective[0]
    why = _("{ranks} wait in the same {call}, and no data arrives").format(
        ranks=_ranks_of(collective), call=_at(first)
    )
    to_do = _(
        "if nothing changes in some minutes, the network between the hosts is the cause: check `hccn_tool` and "
        "HCCL_SOCKET_IFNAME on each host, and CANN's logs (~/ascend/log)"
    )
    return Said(Verdict.STANDS, (), tuple(collective), why, to_do)


def _outside(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Judge a job in which a process waits for something outside the job."""
    acting = [each for each in seen if each.kind is not Kind.IDLE and not _is_launcher(each, alive)]
    candidates: list[Callable[[Member], bool]] = [
        lambda each: each.kind in (Kind.SLEEP, Kind.OUTSIDE, Kind.DEVICE, Kind.CODE, Kind.COMPILE),
        lambda each: each.kind is Kind.LOCK,
        lambda each: each.kind is Kind.QUEUE,
    ]
    for fits in candidates:
        odd = [each for each in acting if fits(each)]
        if odd:
            why, to_do = _("this process {does}, and no process made progress").format(does=odd[0].kind.value), _LATER
            if odd[0].kind is Kind.DEVICE:
                why = _("{why}; long work on an NPU looks the same").format(why=why)
                to_do = _("`npu-smi info` shows whether the NPU computes (AICore); {later}").format(later=_LATER)
            return Said(Verdict.STANDS, tuple(odd[:4]), tuple(_waiting(acting)), why, to_do)
    return None


def _ranks_of(members: Sequence[Member]) -> str:
    return ngettext("{count} rank", "{count} ranks", len(members)).format(count=len(members))


def _at(member: Member) -> str:
    return _("{call} at {place}").format(call=member.call, place=member.place)
