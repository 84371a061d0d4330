"""`verl-npu doctor`: checks an environment against the requirements of the installed verl on NPUs, or diagnoses a
job's log."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click

from verl_npu.cli import terminal, upstreams
from verl_npu.cli.check import judged_patches
from verl_npu.cli.options import example, json_option
from verl_npu.cli.status import BAD
from verl_npu.features import UPSTREAMS, bundles, policy
from verl_npu.findings import Finding, Severity, Status, exit_status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext
from verl_npu.registry.judge.verdict import Verdict
from verl_npu.registry.patch import Feature
from verl_npu.registry.state import State, feature_state
from verl_npu.reporting import clean, shortened

from ..diagnosis import unknown
from ..diagnosis.judgement import Conclusion, Diagnosis, LoggedError, diagnose
from ..diagnosis.owner import frames
from ..diagnosis.progress import Progress
from ..diagnosis.rules import CAUSES
from ..doctor import Judged, Level, Site, cluster, examine, packages
from ..logs.lines import Line
from ..pins import PINS
from . import hanging, report
from .options import command, refuse_ignored

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green", Severity.SKIPPED: "dim"}


@command(
    epilog=example(
        "verl-npu doctor",
        "verl-npu doctor --level import",
        "verl-npu doctor --pin v0.7.1 --only torch,torch_npu",
        "verl-npu doctor --log train.log",
        "verl-npu doctor --hang",
        "verl-npu doctor --log train.log --report",
    )
)
@click.option(
    "--level",
    type=click.Choice([level.value for level in Level]),
    default=Level.STATIC.value,
    show_default=True,
    help=(
        "How thoroughly to check. `static` reads files. `import` also imports the packages. `device` also "
        "runs a computation on each NPU, and sums a value across all NPUs."
    ),
)
@click.option(
    "--pin",
    type=click.Choice([*PINS]),
    help="Check the environment for this version of verl [default: the installed version].",
)
@click.option(
    "--only",
    metavar="NAME,…",
    default="",
    help="Check only these components, separated by commas, for example torch,torch_npu.",
)
@click.option("--cluster", "everywhere", is_flag=True, help="Examine every node of the running Ray cluster.")
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Explain why a job failed. PATH is the job's log, a folder of Ray or CANN logs, or - for standard "
    "input. You can repeat this option.",
)
@click.option(
    "--hang",
    metavar="[JOB]",
    is_flag=False,
    flag_value="",
    help="Check whether a running job hangs, and report the process that hangs. JOB is a Ray job ID or a "
    "process ID. You can omit JOB if only one job is running.",
)
@click.option(
    "--report",
    "as_report",
    is_flag=True,
    help="Print a report to paste into an issue, with all information about the problem.",
)
@click.option(
    "--manifests",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --report: the folder that the job wrote its manifests to (VERL_NPU_MANIFEST_DIR).",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="With --report: write the report to this file."
)
@json_option("Print the result as JSON. Each finding has the keys name, verdict, found, needed, why, and fix.")
def doctor(
    level: str,
    pin: str | None,
    only: str,
    everywhere: bool,
    logs: tuple[Path, ...],
    hang: str | None,
    as_report: bool,
    manifests: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Diagnose problems with a machine or a job, and suggest fixes.

    The command compares the environment with the documentation of your version of verl. A difference that is known to
    make jobs fail is an error; any other difference is a warning. With the default, --level static, the command
    imports none of your packages.

    With --report, the command prints a single report to paste into an issue: the problems of this machine, the
    environment variables that a job reads, the states of verl-npu's features, and, for each log, the result of --log,
    the end of the log, and the lines around its errors. Keys, passwords, addresses, and names are removed if the
    command recognizes them. Read the report before you send it.

    Exit status: 0 if there is no error; 1 if there is an error, or if the nodes differ; 2 if nothing could be checked.
    Warnings do not change the status. With --log: 0 if the training finished or is still running; 1 if the log has an
    error, or ends without a result; 2 if a log cannot be read. With --hang: 0 if the job is making progress or is
    idle; 1 if the job makes no progress; 2 if the job cannot be inspected.
    """
    if (manifests is not None or output is not None) and not as_report:
        raise click.UsageError(_("--manifests and --output need --report"))
    judging = ("level", "pin", "only", "everywhere")
    if as_report:
        refuse_ignored("--report", *judging, "hang", "as_json")
        report.print_report(logs, manifests, output, examine(site_here(), Level.STATIC, ()), judged_states)
        return
    if hang is not None:
        refuse_ignored("--hang", *judging, "logs")
        hanging.show(hang, as_json)
    if logs:
        refuse_ignored("--log", *judging)
        _judge_log(logs, as_json)
    names = [name.strip() for name in only.split(",") if name.strip()]
    if everywhere:
        arguments = ["--level", level, *(("--pin", pin) if pin else ()), *(("--only", only) if only else ())]
        sys.exit(_show_nodes(cluster.examine_nodes(arguments), as_json))
    site = site_here(pin)
    findings = examine(site, Level(level), names)
    if as_json:
        click.echo(json.dumps([cluster.as_json(finding) for finding in findings], indent=2))
    else:
        if site.virtual:
            terminal.echo(_("SIMULATED: virtual NPUs"))
        _show(findings)
        _lead_to_env(findings, site)
    sys.exit(exit_status(findings))


def _lead_to_env(findings: Sequence[Finding], site: Site) -> None:
    """If several packages have incorrect versions, print the command that fixes all of them together."""
    parts = {component.value for component in packages.COMPARED}
    wrong = [each for each in findings if each.code in parts and each.severity in (Severity.ERROR, Severity.WARNING)]
    if len(wrong) >= _SEVERAL and site.pin is not None:
        environments = site.pin.environments
        named = f" --for {site.named.id}" if site.named and len(environments) > 1 else ""
        terminal.paragraph(
            _(
                "`{env} --pin {pin}{named}` prints the commands that install all of these, in order, in "
                "a separate environment."
            ).format(env=packages.ENV, pin=site.pin.name, named=named)
        )


def site_here(pin: str | None = None) -> Site:
    """Return a `Site` for this environment and the given pin, or the pin of the installed verl if no pin is given."""
    judged = _judged()
    name = pin or (judged.pin if judged else "")
    return Site.here(PINS.get(name), judged)


def _judged() -> Judged | None:
    """Return the result of `verl-npu check` for the installed verl. Its source code is read, not imported."""
    tree, first = upstreams.tree(upstreams.INSTALLED), UPSTREAMS[0].name
    if first not in tree:
        return None
    judged, revisions, verdicts, _natives = judged_patches(bundles(), tree)
    features = [feature for one in judged for feature in one.bundle.features]
    states = _states(features, verdicts)
    revision = revisions[first]
    refused = tuple(
        _("{name} ({state})").format(name=name, state=state) for name, state in states.items() if state in BAD
    )
    left_out = policy().disable
    disabled = tuple(feature.name for feature in features if feature.name in left_out)
    return Judged(revision.nearest_pin, revision.exact, refused, disabled)


def judged_states() -> dict[str, str]:
    """Return the state of each feature as `verl-npu check` reports it for the installed upstreams."""
    judged, _, verdicts, _ = judged_patches(bundles(), upstreams.tree(upstreams.INSTALLED))
    features = [feature for one in judged for feature in one.bundle.features]
    return {name: str(state) for name, state in _states(features, verdicts).items()}


def _states(features: Sequence[Feature], verdicts: Mapping[str, Verdict]) -> dict[str, State]:
    return {feature.name: feature_state(verdicts[patch.id].state for patch in feature) for feature in features}


def _show(findings: Sequence[Finding], indent: str = "") -> None:
    """Print errors and warnings in full, and summarize all other findings in two paragraphs."""
    for severity in (Severity.ERROR, Severity.WARNING):
        for finding in (each for each in findings if each.severity is severity):
            mark = terminal.styled(severity.value, _COLOURS[severity])
            terminal.line(indent, mark, "  ", terminal.styled(finding.code, "bold"), ": ", finding.found)
            for word, text in ((_("needed"), finding.expected), (_("why"), finding.why), (_("fix"), finding.fix)):
                if text:
                    label = terminal.padded(word, 8)
                    terminal.paragraph(text, indent=f"{indent}            ", label=f"{indent}    {label}")
    counts = {severity: sum(each.severity is severity for each in findings) for severity in Severity}
    if counts[Severity.ERROR] + counts[Severity.WARNING]:
        terminal.echo()
        terminal.paragraph(_("`verl-npu explain CODE` says more about each."), indent=indent, label=indent)
    for label, said in _right_and_skipped(findings):
        terminal.paragraph(
            _("; ").join(said), indent=f"{indent}  ", label=_("{indent}{label}: ").format(indent=indent, label=label)
        )
    worst = next((v for v in (Severity.ERROR, Severity.WARNING, Severity.OK) if counts[v]), Severity.SKIPPED)
    total = _(", ").join(_counted(counts))
    terminal.line(indent, terminal.styled(total, _COLOURS[worst]))


def _counted(counts: Mapping[Severity, int]) -> Iterator[str]:
    warnings, errors = counts[Severity.WARNING], counts[Severity.ERROR]
    yield _("{count} ok").format(count=counts[Severity.OK])
    yield ngettext("{count} warning", "{count} warnings", warnings).format(count=warnings)
    yield ngettext("{count} error", "{count} errors", errors).format(count=errors)
    yield _("{count} skipped").format(count=counts[Severity.SKIPPED])


def _right_and_skipped(findings: Sequence[Finding]) -> Iterator[tuple[str, list[str]]]:
    """Yield the label and the subjects of up to two groups: the subjects without a problem, and the skipped subjects,
    grouped by reason."""
    right = [
        _("{each} ({found})").format(each=each.code, found=each.found)
        for each in findings
        if each.severity is Severity.OK
    ]
    if right:
        yield "ok", right
    reasons: dict[str, list[str]] = {}
    for each in findings:
        if each.severity is Severity.SKIPPED:
            reasons.setdefault(each.found, []).append(each.code)
    if reasons:
        yield (
            "skipped",
            [
                _("{names} ({reason})").format(names=_(", ").join(names), reason=reason)
                for reason, names in reasons.items()
            ],
        )


def _show_nodes(nodes: Mapping[str, Sequence[Finding]], as_json: bool) -> Status:
    differ = cluster.differences(nodes)
    if as_json:
        content = {
            "differences": [{"name": each.name, "found": each.found} for each in differ],
            "nodes": {node: [cluster.as_json(finding) for finding in findings] for node, findings in nodes.items()},
        }
        click.echo(json.dumps(content, indent=2))
    else:
        if differ:
            terminal.line(terminal.styled(_("The nodes differ:"), "red"))
        for each in differ:
            terminal.line("  ", terminal.styled(each.name, "bold"))
            for found, where in each.found.items():
                terminal.paragraph(
                    _("{where}: {found}").format(where=_(", ").join(where), found=found), indent="      ", label="    "
                )
        for node, findings in nodes.items():
            terminal.line(terminal.styled(node, "bold"))
            _show(findings, indent="  ")
    return Status.FOUND if differ else exit_status([finding for findings in nodes.values() for finding in findings])


_SEVERAL = 3
_SHOWN_LINES = 6
"""The maximum number of lines of an error that are printed."""
_WIDEST = 300
"""The maximum number of characters of a log line that are printed."""
_SAID = {
    Conclusion.CAUSE: ("red", _("the cause is known")),
    Conclusion.CODE: ("yellow", _("this error code has many causes, and nothing else in the log narrows them down")),
    Conclusion.CONSEQUENCE: ("yellow", _("the log shows only consequences: the cause is in another process")),
    Conclusion.UNKNOWN: ("yellow", _("no rule matches this error")),
    Conclusion.NONE: ("green", _("no error")),
}
_CUT = _("the log does not say whether the job failed or finished")


def _judge_log(paths: Sequence[Path], as_json: bool) -> NoReturn:
    """Diagnose the logs of a job, print the result, and exit. Exit status: 0 if the training finished or is still
    running, 1 if there is an error or the log stops abruptly, 2 if a log cannot be read."""
    said = diagnose(paths)
    if as_json:
        click.echo(json.dumps(_log_as_json(said), indent=2))
    else:
        _show_log(said)
    sys.exit(Status.FINE if said.verdict is Conclusion.NONE else Status.FOUND)


def _log_as_json(said: Diagnosis) -> dict[str, object]:
    return {
        "verdict": said.verdict.value,
        "lines": said.lines,
        "steps": said.steps,
        "of_steps": said.progress.total,
        "ended": said.progress.ended,
        "growing": said.progress.growing,
        "waiting": asdict(waiting) if (waiting := said.progress.waiting()) else None,
        "last_lines": [line.text for line in _last_lines(said)],
        "root": _error_as_json(said.root),
        "before": _error_as_json(said.before),
        "followed": [_error_as_json(each) for each in said.followed],
        "hints": [_error_as_json(each) for each in said.hints],
        "survived": [_error_as_json(each) for each in said.survived],
        "left_out": said.left_out,
    }


def _error_as_json(error: LoggedError | None) -> dict[str, object] | None:
    if error is None:
        return None
    event, finding = error.event, error.finding
    process = event.process
    return {
        "rule": error.name or None,
        "means": finding.why if finding else None,
        "fix": finding.fix if finding else None,
        "kind": error.guess.code if error.guess else None,
        "likely": list(error.candidates),
        "seen": list(finding.source) if finding else [],
        "versions": error.rule.versions if error.rule else "",
        "before_the_run": error.rule.before if error.rule else "",
        "error": event.error,
        "process": {
            "name": process.name,
            "pid": process.pid,
            "host": process.ip,
            "rank": process.rank,
            "npu": process.device,
        },
        "log": event.log,
        "line": event.line,
        "at": event.doing,
        "text": _excerpt(error),
    }


def _excerpt(error: LoggedError) -> list[str]:
    """Return the lines of an error to print: the lines that match its rule, or the end of the traceback."""
    event, rule = error.event, error.rule
    if rule is None:
        return [_cut(line) for line in (*event.frames[-3:], *filter(str.strip, event.message[:_SHOWN_LINES]))]
    found = rule.pattern.search(event.text)
    if found is None:
        return []
    first, last = (event.text.count("\n", 0, place) for place in found.span())
    return [_cut(line) for line in event.message[first : last + 1] if line.strip()][:_SHOWN_LINES]


def _cut(line: str) -> str:
    """Shorten a line for printing. A line of a binary file may be extremely long."""
    return shortened(clean(line[:_WIDEST].expandtabs(2)), _WIDEST)


def _lines(count: int) -> str:
    return ngettext("{count} line", "{count} lines", count).format(count=count)


def _steps(count: int) -> str:
    return ngettext("{count} step", "{count} steps", count).format(count=count)


def _last_lines(said: Diagnosis) -> list[Line]:
    return [*said.progress.last_lines][-3:]


def _show_log(said: Diagnosis) -> None:
    style, words = _SAID[said.verdict]
    if said.root is None and said.verdict is Conclusion.UNKNOWN:
        words = _CUT
    terminal.line(terminal.styled(said.verdict.value, style), _(": {words}").format(words=words))
    if said.root is not None:
        _show_root(said.root, said.progress)
    elif said.verdict is Conclusion.NONE:
        done = _("; it has {count}").format(count=_steps(said.steps)) if said.steps else ""
        why = _("the training finished") if said.progress.ended else _("the job still writes to it")
        terminal.paragraph(
            _("The log has {count}: {why}{done}.").format(count=_lines(said.lines), why=why, done=done), indent="  "
        )
        waiting = said.progress.waiting()
        if waiting and waiting.text:
            terminal.paragraph(_("{text}.").format(text=waiting.text), label=_("note: "), indent="  ")
    else:
        _show_cut(said)
    if said.before:
        terminal.echo()
        terminal.paragraph(
            _("Earlier error, in {process}: {error}").format(
                process=said.before.event.process, error=_cut(said.before.event.error)
            ),
            indent="  ",
        )
    if said.followed:
        terminal.echo()
        counts = Counter(each.name or _cut(each.event.error.split(":")[0]) for each in said.followed)
        words = _(", ").join(
            _("{name} ({count})").format(name=name, count=count) if count > 1 else name
            for name, count in counts.most_common(8)
        )
        terminal.paragraph(_("Other errors at the same time: {words}.").format(words=words), indent="  ")
    if said.left_out:
        text = ngettext(
            "{count} more error was not examined, because it differs from others only in numbers, or "
            "because there are too many errors",
            "{count} more errors were not examined, because they differ from others only in numbers, or "
            "because there are too many errors",
            said.left_out,
        )
        terminal.paragraph(text.format(count=said.left_out), label=_("note: "), indent="  ")
    for hint in {each.name: each for each in said.hints}.values():
        if hint.finding and said.root:
            terminal.paragraph(
                _("{why}; to do: {fix}").format(why=hint.finding.why, fix=hint.finding.fix),
                label=_("note: "),
                indent="  ",
            )
    if said.survived:
        names = _(", ").join(sorted({each.name or each.event.error[:60] for each in said.survived}))
        terminal.paragraph(
            _("the job went on after other errors ({names})").format(names=names), label=_("note: "), indent="  "
        )


def _show_cut(said: Diagnosis) -> None:
    """Print what is known about a log that stops abruptly."""
    progress = said.progress
    if not progress.lines:
        terminal.paragraph(
            _(
                "The log is empty: the job wrote nothing, or its output went elsewhere. Start the job with "
                "`… 2>&1 | tee train.log`, which also keeps the errors."
            ),
            indent="  ",
        )
        return
    if progress.binary:
        terminal.paragraph(
            _("{log} is mostly binary. Give the job's printed output instead.").format(log=progress.log), indent="  "
        )
        return
    terminal.paragraph(
        _("The log stops {place}, after {count}. Its last lines:").format(
            place=progress.place(), count=_lines(progress.lines)
        ),
        indent="  ",
    )
    for line in _last_lines(said):
        terminal.line("    | ", f"[{line.process}] " if line.process.pid else "", _cut(line.text.strip()))
    terminal.paragraph(
        _(
            "No process on this host writes to the log. A job that just stops hangs or was killed, most "
            "often because the host ran out of memory, or by the scheduler. Read the output of `dmesg -T "
            "| grep -i oom`, the scheduler's record of the job, and the output of the shell that started "
            "the job. Then give this command Ray's and CANN's logs (/tmp/ray/session_latest/logs, "
            "~/ascend/log), too. If the job still runs on another host, nothing has failed."
        ),
        indent="  ",
    )


def _show_unknown(root: LoggedError, progress: Progress) -> None:
    """Print help for an error that no rule matches."""
    event = root.event
    if root.guess:
        terminal.paragraph(
            _("It looks like {kind}: {why}.").format(kind=root.guess.code, why=root.guess.why), indent="    "
        )
        _show_candidates(root.candidates)
    for frame in reversed(frames(event)):
        terminal.paragraph(
            frame.text, label=_("    in {owner} code: ").format(owner=frame.owner.value), indent="      "
        )
    states = unknown.states(progress.own)
    passed = [
        _("{name} ({states})").format(name=name, states=states.get(name, _("the log does not say its state")))
        for name in unknown.features(event)
    ]
    if passed:
        terminal.paragraph(
            _("The traceback passes through modules that verl-npu patches: {passed}.").format(
                passed=_(", ").join(passed)
            ),
            indent="    ",
        )
    for near in unknown.nearest(event):
        terminal.paragraph(
            _("{rule} ({nearness:.0%} of its words)").format(rule=near.rule.code, nearness=near.nearness),
            label=_("    a similar rule, which does not match: "),
            indent="      ",
        )
    text, places = unknown.text_to_search(event), _(", ").join(unknown.where_to_look(event))
    if text:
        terminal.paragraph(
            _('To do: search the issues of {places} for "{text}".').format(text=text, places=places), indent="    "
        )
    if root.guess:
        terminal.paragraph(_("Then: {fix}.").format(fix=root.guess.fix), indent="    ")
    terminal.paragraph(
        _("`verl-npu doctor --log LOG --report` prints one text to paste into an issue."), indent="    "
    )


def _show_candidates(candidates: Sequence[str]) -> None:
    """Print the likely causes of an error whose cause is not certain."""
    if candidates:
        # The text of a cause has a translation of its own.
        names = [
            _("{code} ({means})").format(code=code, means=_(CAUSES[code])) if code in CAUSES else code
            for code in candidates
        ]
        causes = _("; ").join(names)
        terminal.paragraph(_("Likely causes, the likeliest first: {causes}.").format(causes=causes), indent="    ")


def _show_root(root: LoggedError, progress: Progress) -> None:
    event = root.event
    if not event.line:
        where = event.log
    elif event.log:
        where = _("{log}, line {line}").format(log=event.log, line=event.line)
    else:
        where = _("line {line}").format(line=event.line)
    terminal.line("  ", terminal.styled(root.name or _cut(event.error), "bold"))
    doing = _(", while {doing}").format(doing=event.doing) if event.doing else ""
    step = progress.place(event.line if event.log == progress.log else None)
    terminal.paragraph(
        _("The error began in {process} ({where}), {step}{doing}.").format(
            process=event.process, where=where, step=step, doing=doing
        ),
        indent="    ",
    )
    for line in _excerpt(root):
        terminal.line("    | ", line.strip())
    if root.finding is None:
        _show_unknown(root, progress)
        return
    others = [code for code in root.candidates if code != root.name]
    means = _("Most likely meaning: {why}.") if root.name in root.candidates else _("Meaning: {why}.")
    terminal.paragraph(means.format(why=root.finding.why), indent="    ")
    terminal.paragraph(_("To do: {fix}.").format(fix=root.finding.fix), indent="    ")
    _show_candidates(others)
    if root.rule and root.rule.versions:
        terminal.paragraph(_("Affected: {versions}.").format(versions=root.rule.versions), indent="    ")
    if root.rule and root.rule.before:
        terminal.paragraph(_("`{before}` finds this before the run.").format(before=root.rule.before), indent="    ")
    terminal.paragraph(_("Seen in: {source}.").format(source=_(", ").join(root.finding.source)), indent="    ")
