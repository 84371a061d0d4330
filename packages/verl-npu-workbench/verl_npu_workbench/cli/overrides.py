"""Checks MindSpeed overrides for `verl-npu lint --overrides`, and lists all overrides. Needs no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import click
from packaging.version import Version

from verl_npu.cli import terminal
from verl_npu.errors import CommandError
from verl_npu.features.megatron.contract import NEWEST, Contract, catalogue, contracts, recorded_as, revision_for
from verl_npu.features.megatron.request import Request, Unexpanded, effective, not_judged, requests
from verl_npu.features.megatron.rules import in_words, problems
from verl_npu.features.megatron.source import Installation, installation
from verl_npu.findings import Finding, Severity, Status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext
from verl_npu.pins import pins
from verl_npu.registry.source.folder import PlainFolder

_BRIDGE_IS_DEFAULT = Version("0.9.0")
"""The first verl whose default for `vanilla_mbridge` is False (verl#6951)."""
_LONGEST_PATH = 255
"""The longest file name on Linux. A string of overrides may be longer and is then not a path."""


def show_all(revision: str | None, pin: str | None, as_json: bool) -> None:
    """Print the features of a MindSpeed revision and their overrides. Raises click.UsageError if `revision` or `pin`
    is invalid."""
    asked, source = _asked(_chosen(revision, pin, ""))
    newest = _(
        "MindSpeed {newest} (the newest recorded revision, because none is installed), Megatron {megatron}"
    ).format(newest=NEWEST, megatron=asked[-1].megatron)
    _list(asked[-1], newest if len(asked) > 1 else source, as_json)


def judge(given: str, revision: str | None, pin: str | None, as_json: bool) -> None:
    """Check overrides, which are specified as text or as a script, and exit. Exit status: 0 if nothing is refused; 1
    if an override is refused.

    Raises click.UsageError if `revision` or `pin` is invalid, or if the script does not exist.
    """
    text = _read(given)
    asked, source = _asked(_chosen(revision, pin, text))
    verdicts = [_judge(_with_default_bridge(request, pin), asked) for request in _requests(given, text)]
    notes = [note for pair in combinations(verdicts, 2) for note in _apart(*pair, asked[-1])]
    if as_json:
        click.echo(json.dumps(_content(source, verdicts, notes), indent=2, default=str))
    else:
        _print(source, verdicts, notes)
    refused = any(problem.refused for verdict in verdicts for problem in verdict.problems)
    sys.exit(Status.FOUND if refused else Status.FINE)


def _chosen(revision: str | None, pin: str | None, text: str) -> str | None:
    if revision is not None and pin is not None:
        raise click.UsageError(_("--revision and --pin are mutually exclusive: specify only one of these options"))
    return revision if pin is None else revision_for(pin, text)


def _with_default_bridge(request: Request, pin: str | None) -> Request:
    """Return the request with Megatron-Bridge, if that is the default of the pin's verl. The user's own setting is
    kept."""
    if pin is None or Version(pins()[pin].version) < _BRIDGE_IS_DEFAULT:
        return request
    return replace(request, section={"vanilla_mbridge": False, **request.section})


def _requests(given: str, text: str) -> list[Request]:
    """Parse the requests in a text. If the text comes from a script, errors name the script."""
    try:
        return requests(text)
    except CommandError as error:
        if given == text:
            raise
        raise CommandError(
            subject=f"--overrides {given}",
            expected=_("a script with Megatron overrides"),
            found=error.found,
            fix=_("specify the script that starts a Megatron training run, or the overrides themselves"),
        ) from error


def _read(given: str) -> str:
    """Return the text to check: the script's content if `given` is a path, otherwise `given` itself."""
    path = Path(given)
    may_be_path = "\n" not in given and len(given) < _LONGEST_PATH and path.name
    script = PlainFolder(path.parent).read(path.name) if may_be_path else None
    if script is None and may_be_path and "=" not in given:
        raise click.UsageError(
            _("--overrides {given}: expected an override (key=value) or an existing file").format(given=given)
        )
    return given if script is None else script.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The verdict on one worker's overrides."""

    worker: str
    effective: dict[str, object]
    problems: tuple[Finding, ...]
    not_judged: dict[str, Unexpanded]

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(problem for problem in self.problems if problem.refused)


def _asked(revision: str | None) -> tuple[tuple[Contract, ...], str]:
    """Return the contracts to check against, the newest last, and a line that describes them."""
    if revision is not None:
        chosen = recorded_as(revision)
        return (chosen,), _("MindSpeed {revision} (as recorded), Megatron {megatron}").format(
            revision=chosen.revision, megatron=chosen.megatron
        )
    here = installation()
    if here.mindspeed is not None:
        return (here.contract,), _installed(here)
    run = (contract for contract in contracts() if not contract.adaptor)
    recorded = tuple(sorted(run, key=lambda contract: contract.revision == NEWEST))
    return recorded, _(
        "no MindSpeed is installed, so all recorded revisions were used; choose one revision with --pin or --revision"
    )


def _installed(here: Installation) -> str:
    if here.exact:
        return _("MindSpeed {revision}, installed, Megatron {megatron}").format(
            revision=here.contract.revision, megatron=here.contract.megatron
        )
    return ngettext(
        "MindSpeed {revision}: {count} argument or feature differs",
        "MindSpeed {revision}: {count} arguments or features differ",
        len(here.differences),
    ).format(revision=here.contract.revision, count=len(here.differences))


def _list(contract: Contract, source: str, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": entry.name,
                "overrides": list(entry.overrides),
                "documented": entry.documented,
                "constraint": entry.constraint,
                "here": not entry.missing(contract),
                "missing": list(entry.missing(contract)),
            }
            for entry in catalogue()
        ]
        click.echo(json.dumps({"source": source, "features": rows}, indent=2))
        return
    terminal.echo(source)
    for entry in catalogue():
        here = terminal.styled(_("no "), "red") if entry.missing(contract) else terminal.styled("yes", "green")
        documented = _("documented by MindSpeed since {documented}").format(documented=entry.documented)
        if entry.documented == "-":
            documented = _("not documented by MindSpeed for verl")
        notes = _("; ").join(filter(None, (entry.constraint, documented)))
        terminal.line(here, "  ", terminal.styled(entry.name, "bold"), "  ", terminal.styled(notes, "dim"))
        for override in entry.overrides:
            terminal.echo(f"       {override}")


def _judge(request: Request, asked: Sequence[Contract]) -> _Verdict:
    """Check a request against each contract. An override that only some contracts refuse gets a warning."""
    found: dict[str, list[tuple[str, Finding]]] = {}
    for contract in asked:
        for problem in problems(request, contract):
            found.setdefault(problem.subject, []).append((contract.revision, problem))
    merged = tuple(_merged(answers, len(asked)) for answers in found.values())
    return _Verdict(request.worker, effective(request), merged, not_judged(request, asked[-1]))


def _merged(answers: Sequence[tuple[str, Finding]], asked: int) -> Finding:
    newest = answers[-1][1]
    if len({revision for revision, _unused in answers}) == asked:
        certain = all(problem.refused for _unused, problem in answers)
        return replace(newest, severity=Severity.ERROR if certain else Severity.WARNING)
    where = _(", ").join(dict.fromkeys(revision for revision, _unused in answers))
    return replace(
        newest,
        fix=_("{fix}; this applies to MindSpeed {where}").format(fix=newest.fix, where=where),
        severity=Severity.WARNING,
    )


def _content(source: str, verdicts: Sequence[_Verdict], notes: Sequence[str]) -> dict[str, object]:
    return {
        "source": source,
        "workers": [
            {
                "worker": verdict.worker,
                "effective": verdict.effective,
                "problems": [
                    {
                        "rule": p.code,
                        "override": p.subject,
                        "expected": p.expected,
                        "found": p.found,
                        "fix": p.fix,
                        "refused": p.refused,
                    }
                    for p in verdict.problems
                ],
                "not_judged": {key: value.text for key, value in verdict.not_judged.items()},
            }
            for verdict in verdicts
        ],
        "notes": list(notes),
    }


def _print(source: str, verdicts: Sequence[_Verdict], notes: Sequence[str]) -> None:
    lines = [source]
    for verdict in verdicts:
        lines += [
            (
                _("{worker}: refused: {problem} ({code})")
                if problem.refused
                else _("{worker}: warning: {problem} ({code})")
            ).format(worker=verdict.worker, problem=in_words(problem), code=problem.code)
            for problem in sorted(verdict.problems, key=lambda problem: not problem.refused)
        ]
        if not verdict.refused:
            settings = _(", ").join(f"{key}={value}" for key, value in verdict.effective.items())
            order = _("in order, as far as it can be judged") if verdict.not_judged else _("in order")
            lines.append(
                _("{worker}: {order}; MindSpeed gets {settings}").format(
                    worker=verdict.worker, order=order, settings=settings
                )
            )
        lines += [
            _("{worker}: not judged: {key}={value} {kind}").format(
                worker=verdict.worker, key=key, value=value, kind=value.kind
            )
            for key, value in verdict.not_judged.items()
        ]
    lines += [_("note: {note}").format(note=note) for note in notes]
    if any(verdict.not_judged for verdict in verdicts):
        lines.append(_("note: to have the rest judged, too, write values instead of variables"))
    for line in lines:
        terminal.echo(line)


def _apart(one: _Verdict, other: _Verdict, contract: Contract) -> list[str]:
    """Return the reasons why the workers of two verdicts cannot share a process. Values that have not been computed
    yet are ignored."""
    mine, theirs = one.effective, other.effective
    unknown = {key for key, value in [*mine.items(), *theirs.items()] if isinstance(value, Unexpanded)}
    known = ({*mine, *theirs} & contract.switches) - unknown
    keys = sorted(k for k in known if not contract.alike(k, mine.get(k), theirs.get(k)))
    if not keys:
        return []
    return [
        _("{worker} and {other_worker} differ in {keys}, so these workers cannot share a process").format(
            worker=one.worker, other_worker=other.worker, keys=_(", ").join(keys)
        )
    ]
