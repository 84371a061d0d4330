"""The diagnosis measured by the bench: how many causes it names, how many wrongly, and what it names instead."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verl_npu_workbench.diagnosis.judgement import Conclusion, judge
from verl_npu_workbench.diagnosis.rules import BY_CODE, RULES, LogRule

from . import OPEN, Posted

_CODES = frozenset(BY_CODE)
_CERTAIN = (Conclusion.CAUSE, Conclusion.CONSEQUENCE)
_FAMILIES = {code: rule.families for code, rule in BY_CODE.items()}


class Outcome(enum.Enum):
    """The quality of an answer."""

    RIGHT = "named rightly"
    LIKELIEST = "not certain, and its likeliest cause is right"
    AMONG = "not certain, and another of its causes is right"
    WRONG = "named wrongly"
    """A rule that names a cause named another one."""
    VAGUE = "a code or a consequence, without the right cause"
    UNKNOWN = "unknown"
    NONE = "false none"
    """The diagnosis found no error although there is one."""
    UNPROVED = "a cause named, and the thread is open"


@dataclass(frozen=True, slots=True)
class Answer:
    """The diagnosis of one thread's lines."""

    label: str
    verdict: Conclusion
    named: str
    """The code of the rule; empty if no rule matches."""

    @property
    def outcome(self) -> Outcome:
        """The quality of the answer, judged by the end of the thread."""
        if self.verdict is Conclusion.NONE:
            return Outcome.NONE
        likely = _FAMILIES.get(self.named, ())
        if self.named and self.label in (self.named, *likely) and self.verdict in _CERTAIN:
            return Outcome.RIGHT
        if self.named == self.label:
            return Outcome.LIKELIEST
        if self.label in likely:
            return Outcome.LIKELIEST if self.label == likely[0] else Outcome.AMONG
        if self.verdict is Conclusion.CAUSE:
            return Outcome.UNPROVED if self.label == OPEN else Outcome.WRONG
        return Outcome.UNKNOWN if self.verdict is Conclusion.UNKNOWN else Outcome.VAGUE


def ask(posts: Iterable[Posted], rules: Sequence[LogRule] = RULES) -> tuple[Answer, ...]:
    """Diagnose the lines of each thread, as they were posted."""
    return tuple(_asked(post, rules) for post in posts)


def ask_without_own(posts: Iterable[Posted], rules: Sequence[LogRule] = RULES) -> tuple[Answer, ...]:
    """Diagnose each thread without the rules that were written from it alone."""
    return tuple(_asked(post, [rule for rule in rules if set(rule.seen) != {post.thread}]) for post in posts)


def _asked(post: Posted, rules: Sequence[LogRule]) -> Answer:
    said = judge(post.lines, rules=rules)
    root = said.root
    return Answer(post.label, said.verdict, (root.guess.code if root.guess else root.name) if root else "")


def figures(answers: Iterable[Answer]) -> Counter[Outcome]:
    """Count the outcomes."""
    return Counter(each.outcome for each in answers)


def confusion(answers: Iterable[Answer]) -> Counter[tuple[str, str]]:
    """Count the answers for each label: a rule's code, or the verdict where no rule matches."""
    return Counter((each.label, each.named or each.verdict.value) for each in answers)


def markdown(title: str, answers: Sequence[Answer]) -> str:
    """Return the figures and the confusion table of one part, in Markdown."""
    ended = [each for each in answers if each.label != OPEN]
    return "\n".join((f"## {title}", "", *_summary(ended, answers), "", *_table(answers)))


def _summary(ended: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    still_open = [each for each in answers if each.label == OPEN]
    closed, unclosed = figures(ended), figures(still_open)
    yield f"| outcome | threads with a cause ({len(ended)}) | share | open threads ({len(still_open)}) |"
    yield "|---|---|---|---|"
    for outcome in Outcome:
        share = f"{closed[outcome] / len(ended):.1%}" if ended else ""
        yield f"| {outcome.value} | {closed[outcome]} | {share} | {unclosed[outcome]} |"
    ruled = figures(each for each in ended if each.label in _CODES.union(*_FAMILIES.values()))
    yield ""
    yield f"{ruled.total()} of these threads have a cause that a rule means; {ruled[Outcome.RIGHT]} of them are named."


def _table(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| cause of the thread | threads | what was said |"
    yield "|---|---|---|"
    said = confusion(answers)
    totals = Counter(each.label for each in answers)
    for label, count in totals.most_common():
        rows = ", ".join(f"{name} {number}" for (of, name), number in said.most_common() if of == label)
        yield f"| `{label}` | {count} | {rows} |"
