"""The bundle of a proof, `proof-DATE.zip`: the results and observations, without user names and host names.

A bundle is not trusted. Only two members of the archive are read, by name and up to a size limit; both are JSON.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _
from verl_npu.version import __version__

from ..sandbox.answers import Answer
from ..secrecy.redaction import Redaction
from .content import read as read_json
from .content import to_json
from .corpus import Observation
from .folder import Asked, Folder, put
from .result import StageResult, Verdict

SCHEMA = 1
"""The number of the format. It is raised when older bundles can no longer be read."""
PROOF, CORPUS = "proof.json", "corpus.json"
_MOST_BYTES = 32 << 20
"""The largest size of an unpacked member. JSON may take fifteen times as much memory when it is parsed, for example if
it has empty lists."""
_DATE = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results and observations of a proof, as its bundle contains them."""

    asked: Asked
    made_by: str
    """The version of verl-npu that created the bundle."""
    notes: Mapping[str, str]
    """Facts that the stages found, such as the device's name and what is simulated."""
    stages: tuple[StageResult, ...]
    corpus: tuple[Observation, ...] = ()

    @property
    def simulated(self) -> str:
        """A description of the virtual NPUs, or an empty string on real NPUs."""
        noted, count = self.notes.get("simulated", ""), self.asked.simulated
        if noted or not count:
            return noted
        return f"{count} virtual NPU" + ("" if count == "1" else "s")

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole proof. It is *failed* if at least one stage failed, otherwise *passed* if at least
        one stage passed, otherwise *not possible*."""
        verdicts = {stage.verdict for stage in self.stages}
        if Verdict.FAILED in verdicts:
            return Verdict.FAILED
        return Verdict.PASSED if Verdict.PASSED in verdicts else Verdict.NOT_POSSIBLE

    def as_json(self) -> object:
        """Return the content of proof.json."""
        return to_json(_Content(SCHEMA, self.made_by, self.asked, self.notes, self.stages))


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of proof.json."""

    schema: int
    verl_npu: Annotated[str, 80]
    asked: Asked
    notes: Mapping[str, str]
    stages: tuple[StageResult, ...]


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The content of corpus.json."""

    schema: int
    observations: tuple[Observation, ...]


def collect(folder: Folder) -> Proof:
    """Return the proof that is stored in a folder. The proof may be unfinished."""
    results = folder.results()
    recorded = [folder.recorded(name) for name in results]
    return Proof(
        asked=folder.asked(),
        made_by=__version__,
        notes={name: text for each in recorded for name, text in each.notes.items()},
        stages=tuple(results.values()),
        corpus=tuple(one for each in recorded for one in each.observations),
    )


def write(folder: Folder, shown: Proof) -> Path:
    """Write a redacted proof as a bundle into the proof's folder, and return the bundle's path."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (
            (PROOF, shown.as_json()),
            (CORPUS, to_json(_Corpus(SCHEMA, shown.corpus))),
        ):
            member = zipfile.ZipInfo(name, _DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, json.dumps(content, indent=1))
    path = folder.path / f"proof-{shown.asked.made}.zip"
    put(path, stream.getvalue())
    return path


def redacted(proof: Proof, redact: Redaction) -> Proof:
    """Return a copy of a proof without private data. The texts of errors are redacted, too, because they may contain
    anything."""

    def of_check(stage: StageResult) -> StageResult:
        checks = tuple(
            replace(check, found=redact(check.found), expected=redact(check.expected)) for check in stage.checks
        )
        return replace(stage, cause=redact(stage.cause), checks=checks)

    return replace(
        proof,
        notes={name: redact(text) for name, text in proof.notes.items()},
        stages=tuple(map(of_check, proof.stages)),
        corpus=tuple(replace(each, said=redact(each.said)) if each.said else each for each in proof.corpus),
    )


def read(path: Path) -> Proof:
    """Read a bundle. Raises CommandError if the file is not a bundle."""
    try:
        if not path.is_file():
            raise OSError(_("no such file") if not path.exists() else _("not a regular file"))
        with zipfile.ZipFile(path) as archive:
            members = {name: _member(archive, name, path) for name in (PROOF, CORPUS)}
    # The last three errors: the file is damaged, or compressed or encrypted in a way that Python cannot read.
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise CommandError(
            subject=str(path),
            expected=_("a bundle (proof-DATE.zip) that `verl-npu prove` created"),
            found=str(error) or type(error).__name__,
            fix=_("specify the original file"),
        ) from error
    for member in members.values():
        _check_schema(member, path)
    said: _Content = read_json(_Content, members[PROOF], f"{path}, {PROOF}")
    corpus: _Corpus = read_json(_Corpus, members[CORPUS], f"{path}, {CORPUS}")
    return Proof(
        asked=said.asked, made_by=said.verl_npu, notes=said.notes, stages=said.stages, corpus=corpus.observations
    )


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Mapping[str, object]:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise CommandError(
            subject=str(path),
            expected=_("an archive with {proof} and {corpus}").format(proof=PROOF, corpus=CORPUS),
            found=_("an archive with other files"),
            fix=_("specify a bundle that `verl-npu prove` created"),
        ) from None
    # The size in the archive may be incorrect, so never read more than the limit.
    with archive.open(info) as member:
        data = member.read(_MOST_BYTES + 1)
    too_much = Answer({}, _("more than {most_bytes} MiB").format(most_bytes=_MOST_BYTES >> 20))
    answer = Answer.read(data) if len(data) <= _MOST_BYTES else too_much
    if answer.wrong:
        raise CommandError(
            subject=f"{path}, {name}",
            expected=_("a JSON object"),
            found=answer.wrong,
            fix=_("ask the sender for a new bundle"),
        )
    return answer.content


def _check_schema(content: Mapping[str, object], path: Path) -> None:
    found = content.get("schema")
    if found != SCHEMA:
        raise CommandError(
            subject=str(path),
            expected=_("a bundle of format {number}").format(number=SCHEMA),
            found=repr(found)[:40],
            fix=_("read the bundle with the version of verl-npu that created the bundle, or with a later version"),
        )


def differences(old: Proof, new: Proof) -> Sequence[str]:
    """Return a line for each difference between two proofs, in versions, notes, and checks."""
    lines = []
    for name in sorted({*old.asked.versions, *new.asked.versions}):
        before, after = (each.asked.versions.get(name, _("none")) for each in (old, new))
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    for name in sorted({*old.notes, *new.notes}):
        before, after = (each.notes.get(name, _("none")) for each in (old, new))
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    checks = {(stage.name, check.name): check for stage in old.stages for check in stage.checks}
    for stage in new.stages:
        for check in stage.checks:
            earlier = checks.pop((stage.name, check.name), None)
            if earlier is None:
                lines.append(
                    _("{stage}, {check}: new, {verdict}").format(
                        stage=stage.name, check=check.name, verdict=check.verdict.value
                    )
                )
            elif earlier.verdict is not check.verdict:
                lines.append(f"{stage.name}, {check.name}: {earlier.verdict.value} -> {check.verdict.value}")
    lines += [
        _("{stage}, {check}: missing in the new bundle").format(stage=stage, check=name) for stage, name in checks
    ]
    return lines
