"""From what all processes of a job do to a verdict: whether it hangs, and at which process.

It is said to hang only where no process can end the waiting: one is stopped, a rank is gone or has nothing to do while
others wait for it, the ranks stand in different collectives, or all wait for each other. Where one process waits for
something outside, or cannot be looked into, it is said that the job stands still, and that a later look tells more.
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
    """What is said of a job."""

    WORKS = _("works")
    """At least one process got on between the looks."""
    STANDS = _("stands still")
    """None did, and one of them waits for what may come yet."""
    HANGS = _("hangs")
    """None did, and none can."""
    IDLE = _("idle")
    """No process has anything to do."""
    UNKNOWN = _("unknown")
    """The processes cannot be looked into."""


@dataclass(frozen=True, slots=True)
class Said:
    """The verdict on a job."""

    verdict: Verdict
    odd: tuple[Member, ...]
    """Those for which the others wait."""
    waiting: tuple[Member, ...]
    """Those that wait for others."""
    why: str
    to_do: str


_KINDS_OF_RANKS = (Kind.COLLECTIVE, Kind.MEETING, Kind.SYNC)
_OUTSIDE = (Kind.OUTSIDE, Kind.SLEEP, Kind.DEVICE, Kind.CODE, Kind.QUEUE, Kind.UNSEEN, Kind.COMPILE)


def judge(members: Sequence[Member], whole: bool = True) -> Said:
    """Judge a job by its processes; `whole` says that those of all hosts are among them."""
    alive = [each for each in members if each.state not in "ZX"]
    seen = [each for each in alive if each.kind is not Kind.UNSEEN]
    for rule in (_stopped, _gone, _unseen, _works, _ranks, _deadlock, _outside):
        said = rule(alive, seen, whole)
        if said is not None:
            return said
    waiting = _waiting(seen)
    if waiting:
        why = _("all that is to be seen waits for others, and nothing got on")
        return Said(Verdict.STANDS, (), tuple(waiting), why, _LATER)
    why = _("no process of the job has anything to do")
    return Said(Verdict.IDLE, (), (), why, _("look at what its driver printed last"))


_LATER = _(
    "look again in some minutes: if the same process still stands at the same line, it hangs there. Nothing was "
    "stopped or changed"
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
    why = _("it was stopped by a signal (SIGSTOP, Ctrl-Z, or a debugger), and runs no further until it is continued")
    to_do = _("{call}, if no debugger holds it; then the job goes on where it stands").format(call=call)
    return Said(Verdict.HANGS, tuple(stopped), tuple(_waiting(alive)), why, to_do)


def _gone(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """A rank of a group has no process any more, and others wait for it."""
    for group, ranks in _groups(alive).items():
        size = ranks[0].size
        here = {each.rank for each in ranks}
        complete = whole or ranks[0].local == size
        waiting = [each for each in ranks if each.kind in _KINDS_OF_RANKS and not each.moved]
        missing = sorted({*range(size)} - here)
        if complete and missing and waiting and size <= _MOST_RANKS:
            named: str = _(", ").join(map(str, missing[:8]))
            named = _("{named} and more").format(named=named) if len(missing) > 8 else named
            why = _(
                "rank {named} of {size} (group {group}) has no process any more, and the others wait for it"
            ).format(named=named, size=size, group=group)
            to_do = _(
                "end the job; why that rank ended stands in its log: `verl-npu doctor --log LOG`, with Ray's logs"
            )
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
    """A rank's own children have its variables: workers of its data loader, and an engine's processes."""
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
        "{problem}; without it only the kernel's view is there, which does not tell waiting from slow work"
    ).format(problem=problem)
    if busy:
        why = _("{why}. {busy} of {all} processes use a processor").format(why=why, busy=len(busy), all=len(alive))
    return Said(Verdict.UNKNOWN, (), (), why, _("`pip install py-spy` in the job's environment, and call this again"))


def _works(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    working = [each for each in alive if each.works and not _is_launcher(each, alive)]
    if not working:
        return None
    best = sorted(working, key=lambda each: (each.kind not in (Kind.CODE, Kind.COMPILE), -each.busy))
    waiting = [each for each in _waiting(alive) if not each.works]
    slow = _("it got on between the looks, and the others wait for it: that is slow, and no hang")
    why = slow if waiting else _("it got on between the looks")
    to_do = _("wait; `verl-npu watch LOG` shows how long a step takes")
    return Said(Verdict.WORKS, tuple(best[:3]), tuple(waiting), why, to_do)


def _ranks(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Ranks that wait for each other, and those of them that do something else."""
    for ranks in _groups(seen).values():
        waiting = [each for each in ranks if each.kind in _KINDS_OF_RANKS]
        others = [each for each in ranks if each.kind not in _KINDS_OF_RANKS]
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
    start = _("{ranks} stand in {calls}, and rank {numbers} is not there: it {does}").format(
        ranks=_ranks_of(waiting), calls=calls, numbers=numbers, does=odd[0].kind.value
    )
    if idle:
        to_do = _(
            "that rank was not called, or has returned: look in the code of the others, at the line above, for an "
            "`if` that not all ranks take, and for a rank with less data. End the job"
        )
        return Said(Verdict.HANGS, tuple(odd), tuple(waiting), start, to_do)
    if locked:
        to_do = _("find who holds what it waits for, at {place}: no process of the job got on. End the job").format(
            place=odd[0].place
        )
        return Said(Verdict.HANGS, tuple(odd), tuple(waiting), start, to_do)
    helper = _helper(odd, alive)
    if helper is not None:
        start = _("{start}, on {name}, which {does} at {place}").format(
            start=start, name=helper.name, does=helper.kind.value, place=helper.place
        )
        odd = [*odd, helper]
    return Said(Verdict.STANDS, tuple(odd), tuple(waiting), start, _LATER)


def _helper(odd: Sequence[Member], alive: Sequence[Member]) -> Member | None:
    """The child that a process waits for, such as a worker of its data loader."""
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
    why = _("the ranks stand in different collectives: {said}").format(said=said)
    to_do = _("the ranks run different code: look above these lines for an `if` that not all ranks take. End the job")
    return Said(Verdict.HANGS, tuple(fewest), tuple(waiting), why, to_do)


def _deadlock(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Every process that has anything to do waits for a lock, or by Ray for another one."""
    acting = [each for each in seen if each.kind is not Kind.IDLE and not _is_launcher(each, alive)]
    locked = [each for each in acting if each.kind is Kind.LOCK]
    outside = [each for each in acting if each.kind in _OUTSIDE]
    rays = [each for each in acting if each.kind is Kind.RAY]
    if outside or len(seen) < len(alive) or not whole:
        return None
    if locked:
        why = _("it waits for a lock, no process of the job got on, and none waits for anything outside")
        to_do = _(
            "a thread that waits itself holds the lock at {place}, or it was never given back. End the job"
        ).format(place=locked[0].place)
        return Said(Verdict.HANGS, tuple(locked), tuple(_waiting(acting)), why, to_do)
    workers = [each for each in rays if "ray::" in each.title]
    if rays and len(rays) == len(acting) and workers:
        why = _("all wait for each other by ray.get: an actor for a task of its own, or two actors for each other")
        to_do = _(
            "an actor runs one task at a time: do not call ray.get within an actor's method on what the same actor, "
            "or one that waits for it, has to compute. End the job"
        )
        return Said(Verdict.HANGS, tuple(workers), tuple(rays), why, to_do)
    collective = [each for each in acting if each.kind in _KINDS_OF_RANKS]
    if collective:
        return _all_together(collective)
    return None


def _is_launcher(member: Member, alive: Sequence[Member]) -> bool:
    """It has started the others, and looks whether they still run, as torchrun does."""
    is_parent = any((each.host, each.parent) == (member.host, member.pid) for each in alive)
    return is_parent and member.rank < 0 and "ray::" not in member.title


def _all_together(collective: Sequence[Member]) -> Said:
    first = collective[0]
    why = _("{ranks} stand in the same {call}, and none gets through: data does not arrive").format(
        ranks=_ranks_of(collective), call=_at(first)
    )
    to_do = _(
        "if it is the same in some minutes, the network between the hosts is the cause: `hccn_tool` and "
        "HCCL_SOCKET_IFNAME on each host, and CANN's logs (~/ascend/log)"
    )
    return Said(Verdict.STANDS, (), tuple(collective), why, to_do)


def _outside(alive: Sequence[Member], seen: Sequence[Member], whole: bool) -> Said | None:
    """Somebody waits for what is no process of the job."""
    acting = [each for each in seen if each.kind is not Kind.IDLE and not _is_launcher(each, alive)]
    candidates: list[Callable[[Member], bool]] = [
        lambda each: each.kind in (Kind.SLEEP, Kind.OUTSIDE, Kind.DEVICE, Kind.CODE, Kind.COMPILE),
        lambda each: each.kind is Kind.LOCK,
        lambda each: each.kind is Kind.QUEUE,
    ]
    for fits in candidates:
        odd = [each for each in acting if fits(each)]
        if odd:
            why, to_do = _("it {does}, and no process of the job got on").format(does=odd[0].kind.value), _LATER
            if odd[0].kind is Kind.DEVICE:
                why = _("{why}: long work of an NPU looks the same").format(why=why)
                to_do = _("`npu-smi info` shows whether the NPU computes (AICore); {later}").format(later=_LATER)
            return Said(Verdict.STANDS, tuple(odd[:4]), tuple(_waiting(acting)), why, to_do)
    return None


def _ranks_of(members: Sequence[Member]) -> str:
    return ngettext("{count} rank", "{count} ranks", len(members)).format(count=len(members))


def _at(member: Member) -> str:
    return _("{call} at {place}").format(call=member.call, place=member.place)
