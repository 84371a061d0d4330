"""Every regular expression of the project, found in its source, and texts on which each may take long.

A pattern takes long where it can match the same text in many ways and then fails. So each of its parts that repeats is
given many of what it repeats, of what stands before it, and of the characters that stand for the usual ones, and a
character that nothing expects after them.
"""

from __future__ import annotations

import ast
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

_CALLS = ("compile", "search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
_ANCHORED = frozenset({"match", "fullmatch"})
_USUAL = ("a", "1", " ", ".", "-", "_", "A", "/", "\n")
_UNEXPECTED = ("\x00", "")
_MANY = 20
"""From so many on a part that repeats is attacked."""
_LENGTH = 8000
"""Characters. A pattern that goes over them once takes a tenth of a millisecond; one that begins again at each of
them, or at each of the pumps of forty characters among them, five milliseconds and more."""
_MEASURABLE, _BEYOND_DOUBT, _ENDLESS = 0.001, 0.05, 2.0
"""Seconds."""


@dataclass(slots=True)
class Pattern:
    """A regular expression, and where it is."""

    where: str
    text: str
    flags: int = 0
    uses: set[str] = field(default_factory=set)
    """The functions that it is used with."""

    @property
    def anchored(self) -> bool:
        """Whether it is tried at the beginning of a text only."""
        return bool(self.uses) and self.uses <= _ANCHORED


class _Module(ast.NodeVisitor):
    """The patterns of a module, of which `constants` holds the texts that have names."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.constants: dict[str, str] = {}
        self.names: dict[str, Pattern] = {}
        self.patterns: list[Pattern] = []
        self.made: list[str] = []
        """Where a pattern is made of what is known only as it runs."""

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        text = self.text(node.value)
        if name and text is not None:
            self.constants[name] = text
        if name and isinstance(node.value, ast.Call) and _called(node.value) == "compile" and self.patterns:
            self.names[name] = self.patterns[-1]

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = _called(node)
        if not function or not node.args:
            return
        text = self.text(node.args[0])
        if text is None:
            self.made.append(f"{self.where}: {ast.unparse(node.args[0])}")
            return
        given = [*node.args[1:], *(each.value for each in node.keywords if each.arg == "flags")]
        flags = [ast.unparse(each) for each in given if "re." in ast.unparse(each)]
        number = eval(flags[-1], {"re": re}) if flags else 0
        uses = set() if function == "compile" else {function}
        self.patterns.append(Pattern(f"{self.where}:{node.lineno}", text, int(number), uses))

    def text(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant):
            value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            return value if isinstance(value, str) else None
        if isinstance(node, ast.Name):
            return self.constants.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self.text(node.left), self.text(node.right)]
        elif isinstance(node, ast.JoinedStr):
            parts = [self.text(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values]
        else:
            return None
        return None if None in parts else "".join(map(str, parts))


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re":
        return function.attr if function.attr in _CALLS else ""
    return ""


def find(root: Path, folders: Sequence[str]) -> tuple[list[Pattern], list[str]]:
    """Return the patterns in the Python files of `folders`, and where one is made of what only a run knows."""
    modules = []
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = _Module(str(path.relative_to(root)))
        module.visit(tree)
        modules.append(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _CALLS:
                used = module.names.get(node.value.id)
                if used is not None:
                    used.uses.add(node.attr)
    patterns = [pattern for module in modules for pattern in module.patterns]
    return patterns, [each for module in modules for each in module.made]


def attacks(pattern: Pattern) -> Iterator[Callable[[int], str]]:
    """Yield what makes texts of about a length on which the pattern may take long."""
    tree = parser.parse(pattern.text, pattern.flags)
    usual = _told_apart(tree)
    seen = set()
    for before, body, after in _repeats(list(tree), ""):
        pumps = {body, before, before + after, before + body + after, body + after}
        for head in ("", before):
            for pump in sorted(pumps.union(usual) - {""}):
                for tail in _UNEXPECTED:
                    if (head, pump, tail) not in seen:
                        seen.add((head, pump, tail))
                        yield _maker(head, pump, tail)


def _maker(head: str, pump: str, tail: str) -> Callable[[int], str]:
    return lambda length: head + pump * max(1, length // len(pump)) + tail


def _repeats(items: list[Any], before: str) -> Iterator[tuple[str, str, str]]:
    """Yield of each part that repeats a text that matches what stands before it, it itself, and what follows it."""
    for place, (code, argument) in enumerate(items):
        after = _example(items[place + 1 :])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None)):
            _, most, body = argument
            if most is codes.MAXREPEAT or most >= _MANY:
                yield before, _example(list(body)), after
            yield from _repeats(list(body), before)
        elif code is codes.SUBPATTERN:
            yield from _repeats(list(argument[-1]), before)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from _repeats(list(branch), before)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _repeats(list(argument[1]), before)
        before += _example([(code, argument)])


def _told_apart(tree: Any) -> set[str]:
    """Return the usual characters without those that each part of a pattern takes just as it takes another."""
    classes = [re.compile(each, re.DOTALL) for each in sorted({r"\w", *_classes(tree)})]
    return set({tuple(bool(each.match(one)) for each in classes): one for one in _USUAL}.values())


def _classes(items: Any) -> Iterator[str]:
    """Yield a pattern for each part that takes one character."""
    for code, argument in items:
        if code in (codes.LITERAL, codes.NOT_LITERAL):
            yield f"[{'^' * (code is codes.NOT_LITERAL)}{re.escape(chr(argument))}]"
        elif code is codes.ANY:
            yield r"[^\n]"
        elif code is codes.IN:
            yield _class_of(argument)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from _classes(branch)
        elif isinstance(argument, parser.SubPattern):
            yield from _classes(argument)
        elif isinstance(argument, tuple):
            yield from _classes(next((each for each in argument if isinstance(each, parser.SubPattern)), ()))


def _example(items: list[Any]) -> str:
    return "".join(_one(code, argument) for code, argument in items)


def _one(code: Any, argument: Any) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code is codes.NOT_LITERAL:
        return next(each for each in "a1 " if each != chr(argument))
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(argument)
    if code is codes.BRANCH:
        return _example(list(argument[1][0]))
    if code is codes.SUBPATTERN:
        return _example(list(argument[-1]))
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None)):
        least, most, body = argument
        return _example(list(body)) * max(least, 1 if most else 0)
    if code is getattr(codes, "ATOMIC_GROUP", None):
        return _example(list(argument))
    return ""


def _member(items: Any) -> str:
    tried = [*_USUAL, *(chr(number) for number in range(32, 127))]
    tried += [
        chr(value[0] if code is codes.RANGE else value)
        for code, value in items
        if code in (codes.RANGE, codes.LITERAL)
    ]
    compiled = re.compile(_class_of(items), re.DOTALL)
    return next((each for each in tried if compiled.fullmatch(each)), "")


_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


def _class_of(items: Any) -> str:
    said = ""
    for code, value in items:
        if code is codes.NEGATE:
            said = "^" + said
        elif code is codes.LITERAL:
            said += re.escape(chr(value))
        elif code is codes.RANGE:
            said += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif code is codes.CATEGORY:
            said += _CATEGORIES[value]
    return f"[{said}]"


def grows(pattern: Pattern, attack: Callable[[int], str]) -> bool:
    """Whether a text of twice the length takes more than three times as long, as measured time and again.

    Where a text takes no time that can be measured, it does not.
    """
    compiled = re.compile(pattern.text, pattern.flags)
    run = (
        compiled.fullmatch
        if pattern.uses == {"fullmatch"}
        else compiled.match
        if pattern.anchored
        else compiled.search
    )
    if _seconds(run, attack(_LENGTH), 1) < _MEASURABLE:
        return False
    for tries in (1, 3, 9):
        took = _seconds(run, attack(_LENGTH), tries)
        if took == math.inf:
            return True
        if _seconds(run, attack(2 * _LENGTH), tries) <= 3 * took:
            return False
        # Another process may take a little of a time, and not much of a long one.
        if took > _BEYOND_DOUBT:
            return True
    return True


def _seconds(run: Callable[[str], object], text: str, tries: int) -> float:
    """Return the least that it took, of a processor's time; what has no end in sight takes for ever."""
    best = math.inf
    before = signal.signal(signal.SIGVTALRM, _give_up)
    try:
        for _ in range(tries):
            start = time.thread_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, _ENDLESS)
            run(text)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            best = min(best, time.thread_time() - start)
    except _Endless:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return best


class _Endless(Exception):
    """It has taken so long that its end is not worth waiting for."""


def _give_up(number: int, frame: object) -> None:
    raise _Endless
