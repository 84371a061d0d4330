"""What a walk found, as Markdown and as JSON: names, hashes and verdicts, and nothing of upstream's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from .walk import Change, Walk

__all__ = ["as_json", "as_markdown"]


def as_json(walk: Walk) -> dict[str, object]:
    """Return the whole result in plain form."""
    return {
        "commits": walk.commits,
        "touching": walk.touching,
        "sampled": walk.sampled,
        "judged": walk.judged,
        "changes": [
            {
                "commit": change.commit.name,
                "date": change.commit.date,
                "subject": change.commit.subject,
                "patch": change.patch,
                "before": list(change.before),
                "after": list(change.after),
            }
            for change in walk.changes
        ],
        "first": {patch: list(said) for patch, said in walk.first.items()},
        "last": {patch: list(said) for patch, said in walk.last.items()},
    }


def as_markdown(walk: Walk) -> str:
    """Return the counts, and a table of the commits that changed a verdict; the reasons are in the JSON."""
    causes = {change.commit.name for change in walk.changes}
    lines = [
        f"{walk.commits} commits, of which {walk.touching} touch a file that a patch is about; {walk.judged} were "
        f"judged, {walk.sampled} of them a sample of the others. {len(walk.changes)} verdicts changed, by "
        f"{len(causes)} commits.",
        "",
        "| from | to | verdicts |",
        "|---|---|---|",
    ]
    kinds = Counter((change.before[0], change.after[0]) for change in walk.changes)
    lines += [f"| {before} | {after} | {count} |" for (before, after), count in sorted(kinds.items())]
    lines += ["", "| date | commit | subject | verdicts |", "|---|---|---|---|"]
    for commit, changes in groupby(walk.changes, key=lambda change: change.commit):
        cells = [commit.date, f"`{commit.name[:10]}`", _cell(commit.subject), "<br>".join(_verdicts(list(changes)))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _verdicts(changes: Sequence[Change]) -> list[str]:
    """One line for each way that a verdict went: a module that goes takes many patches with it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before[0], change.after[0]), []).append(f"`{change.patch}`")
    return [f"{before} → {after}: {', '.join(patches)}" for (before, after), patches in groups.items()]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
