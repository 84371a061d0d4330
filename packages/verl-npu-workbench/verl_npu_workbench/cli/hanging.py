"""`verl-npu doctor --hang`: reports what a hung job is waiting for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.findings import Status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..hanging.doing import Kind
from ..hanging.everywhere import Seen, look
from ..hanging.looking import PAUSE, Member, as_json
from ..hanging.verdict import Said, Verdict, judge

_COLOURS = {
    Verdict.WORKS: "green",
    Verdict.STANDS: "yellow",
    Verdict.HANGS: "red",
    Verdict.IDLE: "yellow",
    Verdict.UNKNOWN: "yellow",
}
_STATUS = {
    Verdict.WORKS: Status.FINE,
    Verdict.IDLE: Status.FINE,
    Verdict.STANDS: Status.FOUND,
    Verdict.HANGS: Status.FOUND,
    Verdict.UNKNOWN: Status.NOT_JUDGED,
}
_MOST = 12
"""The maximum number of processes that are listed."""


def show(asked: str, wants_json: bool) -> NoReturn:
    """Inspect a job, print the verdict, and exit."""
    with progress.step(_("inspecting each process several times within {pause:g} s").format(pause=PAUSE)):
        seen = look(asked)
    said = judge(seen.members, seen.whole)
    if wants_json:
        click.echo(json.dumps(_as_json(seen, said), indent=2))
    else:
        _show(seen, said)
    sys.exit(_STATUS[said.verdict])


def _as_json(seen: Seen, said: Said) -> dict[str, object]:
    return {
        "job": seen.job,
        "verdict": said.verdict.value,
        "why": said.why,
        "to_do": said.to_do,
        "odd": [as_json(each) for each in said.odd],
        "processes": [as_json(each) for each in seen.members],
        "hosts": [*seen.hosts],
        "hosts_without_an_answer": [*seen.silent],
        "problem": seen.problem,
    }


def _show(seen: Seen, said: Said) -> None:
    processes = ngettext("{count} process", "{count} processes", len(seen.members)).format(count=len(seen.members))
    hosts = ngettext("{count} host", "{count} hosts", len(seen.hosts)).format(count=len(seen.hosts))
    words = _(": job {job}, {processes} on {hosts}, {pause:g} s").format(
        job=seen.job, processes=processes, hosts=hosts, pause=PAUSE
    )
    terminal.line(terminal.styled(said.verdict.value, _COLOURS[said.verdict]), words)
    for each in said.odd[:3]:
        terminal.line("  ", terminal.styled(each.name, "bold"))
        terminal.paragraph(_("This process {does}.").format(does=_words(each)), indent="    ")
        for line in each.stack:
            terminal.line("    | ", line)
    terminal.paragraph(_("Why: {why}.").format(why=said.why), indent="  ")
    terminal.paragraph(_("To do: {fix}.").format(fix=said.to_do), indent="  ")
    if seen.problem:
        text = _("Only this host was inspected: {problem}.").format(problem=seen.problem)
        terminal.paragraph(text, indent="  ", label=_("note: "))
    if seen.silent:
        text = _("No answer from {hosts}.").format(hosts=_(", ").join(seen.silent))
        terminal.paragraph(text, indent="  ", label=_("note: "))
    unseen = [each for each in seen.members if each.kind is Kind.UNSEEN and said.verdict is not Verdict.UNKNOWN]
    if unseen:
        text = ngettext(
            "{count} process could not be inspected: {problem}.",
            "{count} processes could not be inspected: {problem}.",
            len(unseen),
        ).format(count=len(unseen), problem=unseen[0].problem)
        terminal.paragraph(text, indent="  ", label=_("note: "))
    _show_all(seen.members, said)


def _words(member: Member) -> str:
    if member.state in "Tt":
        stopped = _("is stopped, at {place}").format(place=member.place)
        return stopped if member.place else _("is stopped")
    does = member.kind.value
    if member.call and member.kind is not Kind.CODE:
        does = _("{does} ({call})").format(does=does, call=member.call)
    return _("{does} at {place}").format(does=does, place=member.place) if member.place else does


def _show_all(members: Sequence[Member], said: Said) -> None:
    """Print one line for each process that has something to do."""
    acting = [each for each in members if each.kind is not Kind.IDLE]
    terminal.echo()
    rows = [
        (each.name, _("works") if each.works else _("waits"), _words(each))
        for each in sorted(acting, key=lambda each: (each.rank < 0, each.rank, each.host, each.pid))[:_MOST]
    ]
    if rows:
        terminal.table(rows, ["green" if row[1] == "works" else "yellow" for row in rows], indent="  ")
    left = len(acting) - len(rows)
    idle = len(members) - len(acting)
    more = [_("{count} more").format(count=left)] if left > 0 else []
    more += [_("{count} with nothing to do").format(count=idle)] if idle else []
    if more:
        terminal.echo(_("  and {more}").format(more=_(", ").join(more)))
