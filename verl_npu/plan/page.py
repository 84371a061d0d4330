"""A plan as one HTML page that needs nothing else: no file, no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .fitting import Try
from .hardware import GIB, Hardware
from .largest import Largest
from .picture import svg
from .planning import Planned
from .timing import assumptions, spans, total
from .verdict import Verdict

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light; } body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: #fff;
  color: #1f2328; font: 16px/1.5 system-ui, sans-serif; } h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid #d1d9e0; vertical-align: top; }
p, li { color: #59636e; } svg { width: 100%; height: auto; }
"""


def page(name: str, planned: Planned, verdict: Verdict, tries: Sequence[Try], largest: Largest | None = None) -> str:
    """Return the page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>verl-npu plan: {escape(name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(_parts(name, planned, verdict, tries, largest))
        + "\n</body>\n</html>\n"
    )


def _parts(
    name: str, planned: Planned, verdict: Verdict, tries: Sequence[Try], largest: Largest | None
) -> Iterable[str]:
    yield f"<h1>{escape(name)}: {verdict.fit.value}</h1>"
    share, model = planned.share, planned.model
    yield (
        f"<p>SIMULATED. {share.world} NPUs of {planned.hardware.name.upper()}, {escape(model.source)}, "
        f"{model.parameters / 1e9:.2f} billion parameters; sequences of {share.length} tokens.</p>"
    )
    yield _of_phases(verdict)
    for outcome in planned.outcomes:
        kind = planned.share.kinds.get(outcome.rank, "")
        if outcome.timeline:
            yield f"<h2>Rank {outcome.rank}: {escape(kind)}</h2>"
            yield svg(outcome, verdict, f"rank {outcome.rank}")
    if tries:
        yield "<h2>What was tried</h2>"
        changes = [", ".join(f"{key}={value}" for key, value in each.knob.changes) for each in tries]
        outcomes = [
            (change, each.knob.why, each.verdict.fit.value) for change, each in zip(changes, tries, strict=True)
        ]
        yield _table(("setting", "why", "verdict"), outcomes)
    if largest:
        yield f"<h2>The largest {escape(largest.key)} that fits: {largest.size or 'none'}</h2>"
        probes = [
            (str(each.size), each.phase, f"{each.needed / GIB:.2f}", "fits" if each.fits else "does not fit")
            for each in largest.probes
        ]
        yield _table(("size", "phase that needs most", "with the reserve, GiB", "verdict"), probes)
    found = spans(planned)
    yield "<h2>Seconds of a step, as a range</h2>"
    yield _table(
        ("phase", "at best", "at worst"),
        [(span.phase, f"{span.least:.1f}", f"{span.most:.1f}") for span in (*found, total(found))],
    )
    yield "<h2>Where the numbers come from</h2>"
    yield _list(
        [
            *(f"{each.name}: {each.size / GIB:.2f} GiB. {each.source}" for each in verdict.reserve),
            *_figures(planned.hardware),
            *assumptions(planned),
            *planned.notes,
        ]
    )


def _of_phases(verdict: Verdict) -> str:
    rows = []
    for phase in verdict.phases:
        held = sorted(phase.holders.items(), key=lambda each: -each[1])
        rows.append(
            (
                phase.phase,
                str(phase.rank),
                f"{phase.held / GIB:.2f}",
                f"{phase.needed / GIB:.2f}",
                ", ".join(f"{name} {size / GIB:.2f}" for name, size in held),
                phase.fit.value,
            )
        )
    return _table(("phase", "rank", "tensors, GiB", "with the reserve, GiB", "held by, GiB", "verdict"), rows)


def _figures(hardware: Hardware) -> list[str]:
    named = {
        "memory of an NPU": hardware.memory,
        "bfloat16 operations a second": hardware.flops,
        "its memory, bytes a second": hardware.bandwidth,
        "links in a node, bytes a second": hardware.link,
        "links between nodes, bytes a second": hardware.network,
        "host, bytes a second": hardware.host,
    }
    return [f"{name}: {figure.value:.4g}. {figure.source}" for name, figure in named.items()]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
