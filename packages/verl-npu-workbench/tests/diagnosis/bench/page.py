"""The figures of the bench and the confusion tables in docs/reference/bench.md and its Chinese twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import OPEN, Part, read
from .measure import Answer, Outcome, ask, ask_without_own, confusion, figures

DOCS = Path(__file__).resolve().parents[5] / "docs" / "reference"
PAGES = {"en": DOCS / "bench.md", "zh": DOCS / "bench.zh-CN.md"}
BEGIN, END = "<!-- bench: made by python -m tests.diagnosis.bench --write -->", "<!-- end of bench -->"
_TOGETHER = "likeliest"
_WORDS: Mapping[str, Mapping[Outcome | str, str]] = {
    "en": {
        Outcome.RIGHT: "the thread's cause",
        Outcome.LIKELIEST: "not certain; the likeliest cause is the thread's",
        Outcome.AMONG: "not certain; another listed cause is the thread's",
        Outcome.WRONG: "another cause",
        Outcome.VAGUE: "a code or a consequence, without the thread's cause",
        Outcome.UNKNOWN: "unknown, without the thread's cause",
        Outcome.NONE: "none",
        Outcome.UNPROVED: "a cause",
        _TOGETHER: "the first two together",
        "outcome": "verdict",
        "without": "the same without the rules from each thread itself",
        "known": "threads that rules were written from",
        "unread": "unread threads",
        "open": "Threads that ended without a cause",
        "confusion": "The thread's cause and the rule that was named ({part}):",
        "cause": "the thread's cause",
        "threads": "threads",
        "said": "rule",
    },
    "zh": {
        Outcome.RIGHT: "指出了原因，且与讨论一致",
        Outcome.LIKELIEST: "原因不确定，最可能的一个与讨论一致",
        Outcome.AMONG: "原因不确定，列出的另一个与讨论一致",
        Outcome.WRONG: "指出了另一个原因",
        Outcome.VAGUE: "错误码或后果，没有讨论的原因",
        Outcome.UNKNOWN: "unknown，没有讨论的原因",
        Outcome.NONE: "none",
        Outcome.UNPROVED: "指出了一个原因",
        _TOGETHER: "前两行合计",
        "outcome": "给出的结论",
        "without": "据以编写规则，每个讨论不用由它编写的规则",
        "known": "据以编写规则",
        "unread": "未读",
        "open": "没有得出原因的讨论",
        "confusion": "讨论的结论与给出的结论（{part}的部分）：",
        "cause": "讨论的结论",
        "threads": "讨论数",
        "said": "给出的结论",
    },
}
_COLUMNS = ("known", "without", "unread")


def rendered(language: str) -> str:
    """Return a page with new figures. Raises ValueError if a marker is missing."""
    text = PAGES[language].read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _unused, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"expected {BEGIN} and {END} in {PAGES[language]}")
    return f"{before}{BEGIN}\n{_content(_WORDS[language])}\n{END}{after}"


def _content(words: Mapping[Outcome | str, str]) -> str:
    known, unread = read(Part.KNOWN), read(Part.UNREAD)
    answers = {"known": ask(known), "without": ask_without_own(known), "unread": ask(unread)}
    closed = {name: _closed(given) for name, given in answers.items()}
    unclosed = {name: [each for each in given if each.label == OPEN] for name, given in answers.items()}
    parts = [
        "\n".join(_summary(closed, words)),
        f"{words['open']}:",
        "\n".join(_summary(unclosed, words)),
    ]
    for part in ("known", "unread"):
        parts.append(words["confusion"].format(part=words[part]))
        parts.append("\n".join(_confusion(answers[part], words)))
    return "\n\n".join(parts)


def _closed(answers: Sequence[Answer]) -> list[Answer]:
    return [each for each in answers if each.label != OPEN]


def _summary(answers: Mapping[str, Sequence[Answer]], words: Mapping[Outcome | str, str]) -> Iterator[str]:
    heads = [f"{words[name]} ({len(answers[name])})" for name in _COLUMNS]
    yield f"| {words['outcome']} | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    counts = {name: figures(given) for name, given in answers.items()}
    for outcome in Outcome:
        if any(counts[name][outcome] for name in _COLUMNS) or outcome in (Outcome.WRONG, Outcome.NONE):
            yield _row(words[outcome], [(counts[name][outcome], len(answers[name])) for name in _COLUMNS])
        if outcome is Outcome.LIKELIEST and any(counts[name][outcome] for name in _COLUMNS):
            both = [(counts[name][outcome] + counts[name][Outcome.RIGHT], len(answers[name])) for name in _COLUMNS]
            yield _row(words[_TOGETHER], both)


def _row(label: str, values: Sequence[tuple[int, int]]) -> str:
    return f"| {label} | {' | '.join(f'{number} ({number / of:.1%})' for number, of in values)} |"


def _confusion(answers: Sequence[Answer], words: Mapping[Outcome | str, str]) -> Iterator[str]:
    yield f"| {words['cause']} | {words['threads']} | {words['said']} |"
    yield "|---|---|---|"
    said = confusion(answers)
    for label, count in Counter(each.label for each in answers).most_common():
        rows = ", ".join(f"{name} {number}" for (of, name), number in said.most_common() if of == label)
        yield f"| `{label}` | {count} | {rows} |"
