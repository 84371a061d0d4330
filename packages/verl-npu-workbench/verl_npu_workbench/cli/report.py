"""`verl-npu doctor --report`: writes a report with everything that somebody needs to know in order to help."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from verl_npu.cli import terminal
from verl_npu.cli.status import shares
from verl_npu.errors import SourceError
from verl_npu.findings import Finding
from verl_npu.manifest import Manifest, read_manifests

from ..diagnosis import unknown
from ..diagnosis.judgement import Diagnosis, diagnose
from ..diagnosis.report import Report, render
from ..places import put
from ..secrecy.redaction import Redaction

_Judged = Callable[[], Mapping[str, str]]
"""A function that returns the features' states as `verl-npu check` reports them."""
_FENCE = "````"
"""Four backticks, because a log may contain three."""


def print_report(
    logs: Sequence[Path], manifests: Path | None, output: Path | None, findings: Sequence[Finding], judged: _Judged
) -> None:
    """Print the report as plain text that can be pasted into an issue, or write the report to a file.

    Raises SourceError if the manifests or a log cannot be read, or if the output file cannot be written.
    """
    said = diagnose(logs) if logs else None
    found = _read(manifests) if manifests is not None else []
    states, told_by = _states(found, said, judged)
    made = Report(
        findings=findings,
        environ=os.environ,
        states=states,
        told_by=told_by,
        said=said,
    )
    redact = Redaction.here(each["host"] for each in found)
    text = render(made, redact)
    if output is None:
        terminal.block(f"{_FENCE}text\n{text}{_FENCE}")
        return
    terminal.paragraph(
        f"The report has {len(text.splitlines())} lines. Masked in them: {redact.said()}. Addresses, names, and "
        "folders were removed as well."
    )
    _write(output, text)
    terminal.paragraph(f"{output}: written. Read it before you send it.")


def _write(file: Path, text: str) -> None:
    try:
        put(file, text.encode())
    except OSError as error:
        raise SourceError(
            subject=f"--output {file}",
            expected="a writable file",
            found=error.strerror or str(error),
            fix="specify another path",
        ) from None


def _read(folder: Path) -> list[Manifest]:
    found, unread = read_manifests(folder)
    for error in unread:
        terminal.fail(str(error))
    if not found:
        raise SourceError(
            subject=str(folder),
            expected="manifests of a job",
            found="a folder without manifests" if folder.is_dir() else "no such folder",
            fix="specify the folder that the job's variable VERL_NPU_MANIFEST_DIR names, or remove --manifests",
        )
    return found


def _states(manifests: Sequence[Manifest], said: Diagnosis | None, judged: _Judged) -> tuple[Mapping[str, str], str]:
    """Return the states of verl-npu's features and their source: the manifests if there are any, otherwise the log,
    otherwise `verl-npu check`."""
    if manifests:
        states: dict[str, list[str]] = {}
        for share in shares(manifests):
            states.setdefault(share.feature, []).append(f"{share.state} in {share.processes}")
        return {
            name: "; ".join(each) for name, each in states.items()
        }, f"{len(manifests)} manifest{'' if len(manifests) == 1 else 's'}"
    by_log = unknown.states(said.progress.own) if said is not None else {}
    return (by_log, "the log") if by_log else (judged(), "verl-npu check in this environment")
