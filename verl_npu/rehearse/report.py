"""What came of rehearsals, as JSON and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..manifest import read_manifests
from .rehearsal import Plan, Rehearsed
from .rules import RULES

__all__ = ["NOT_SHOWN", "by_rule", "content", "error_content", "features", "page", "planned"]

NOT_SHOWN = (
    "speed",
    "memory at full size",
    "an NPU's numbers",
    "several machines",
)
"""What no rehearsal shows."""


def by_rule(made: Plan) -> Iterable[tuple[str, str, list[tuple[str, object, object]]]]:
    """Yield each rule that changed something: its name, its reason, and key, before and after of each change."""
    for rule in RULES:
        changes = [(change.key, change.before, change.after) for change in made.changes if change.rule == rule.name]
        if changes:
            yield rule.name, rule.reason, changes


def planned(made: Plan) -> dict[str, object]:
    """Return a plan as JSON has it."""
    layout = made.layout
    return {
        "trainer": made.trainer.module,
        "tree": str(made.tree),
        "architecture": made.architecture.name,
        "npus": layout.all_npus,
        "layout": {
            name: getattr(layout, name)
            for name in ("tensor", "pipeline", "context", "expert", "sequence", "data", "rollout_tensor")
        },
        "exports": dict(made.trainer.exports),
        "changes": [
            {"key": change.key, "before": change.before, "after": change.after, "rule": change.rule}
            for change in made.changes
        ],
        "notes": list(made.notes),
        "command": list(made.command),
    }


def features(done: Rehearsed) -> dict[str, list[str]]:
    """Return the states of each feature over all processes of the run."""
    found: dict[str, list[str]] = {}
    for manifest in read_manifests(done.plan.folder / "manifests"):
        for name, feature in manifest["features"].items():
            states = found.setdefault(name, [])
            if feature["state"] not in states:
                states.append(feature["state"])
    return found


def content(script: str, done: Rehearsed) -> dict[str, object]:
    """Return a rehearsal as JSON has it."""
    failure = done.verdict.failure
    return {
        "script": script,
        "verdict": done.verdict.kind.value,
        "steps": done.verdict.steps,
        "seconds": round(done.seconds, 1),
        "failure": None
        if failure is None
        else {
            "error": failure.error,
            "process": failure.process,
            "phase": failure.phase,
            "owner": failure.owner.value,
            "raised_in": failure.raised_in,
        },
        "simulated": True,
        "not_shown": list(NOT_SHOWN),
        "features": features(done),
        "exports_left_out": list(done.run.left_out),
        "folder": str(done.plan.folder),
        **planned(done.plan),
    }


def error_content(script: str, error: Exception) -> dict[str, object]:
    """Return as JSON that a script could not be rehearsed, and why."""
    return {"script": script, "verdict": "not rehearsed", "steps": 0, "seconds": 0.0, "error": str(error)}


def page(results: Sequence[Mapping[str, object]]) -> str:
    """Return a page in Markdown: a table of scripts with their verdicts, and what the failures were."""
    lines = [
        "# Rehearsals on virtual NPUs (SIMULATED)",
        "",
        f"Not shown by any of them: {', '.join(NOT_SHOWN)}.",
        "",
        "| script | verdict | steps | NPUs | seconds | first error |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        lines.append(
            f"| {_cell(each['script'])} | {each['verdict']} | {each['steps']} | {each.get('npus', '')} "
            f"| {each['seconds']} | {_cell(_error(each))} |"
        )
    return "\n".join([*lines, ""])


def _error(each: Mapping[str, object]) -> str:
    failure = each.get("failure")
    if isinstance(failure, Mapping):
        return f"{failure['owner']}, {failure['process']}, {failure['phase']}: {failure['error']}"
    return str(each.get("error", ""))


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")[:300]
