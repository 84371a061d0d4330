"""Masks what may be secret in a text: by the name in front of it, by its form, as a variable's value, as random.

A value behind a name that may be a secret's leaves only if it is known to be harmless. `names` has both.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from detect_secrets.plugins.base import RegexBasedDetector

from .names import Kind, is_harmless, is_random, kind_of


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's value may be a secret.

    What nobody has for a key is none: a small number, and a short word where the name says no more than `key`.
    """
    kind = kind_of(name)
    if kind is Kind.HARMLESS or kind is Kind.PERHAPS or is_harmless(value, kind):
        text = f"{name}={value}"
        return any(span.start > len(name) for span in (*_by_name(text), *_by_form(text)))
    is_sure = kind is Kind.PASSWORD and kind_of(f"{name}_id") is not Kind.HARMLESS
    return is_sure or not re.fullmatch(r"\d{1,6}|[a-z_]{1,16}|\.{0,2}/[\w./\-]*", value)


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    start: int
    end: int
    kind: str
    named: bool = False
    """Whether a name or a form tells it, so that it is a secret wherever else it stands."""


class Masking:
    """Masks secrets, and counts them by their kind."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` are variables whose values are masked wherever they stand, if their names may be secrets'."""
        self.counts: Counter[str] = Counter()
        self._known: dict[str, str] = {}
        for name, value in environ.items():
            kind = kind_of(name)
            if kind not in (Kind.HARMLESS, Kind.PERHAPS) and not is_harmless(value, kind):
                self._known[value] = kind.value
            else:
                self._learn(f"{name}={value}")

    def _learn(self, text: str) -> None:
        for span in _told(text):
            if span.named and len(value := text[span.start : span.end].strip()) >= _LEAST:
                self._known.setdefault(value, span.kind)

    def __call__(self, text: str) -> str:
        """Return a text in which secrets are masked."""
        told = list(_told(text))
        known = dict(self._known)
        for span in told:
            value = text[span.start : span.end]
            if span.named and len(value) >= _LONG and not value.isalpha() and "\n" not in value:
                known.setdefault(value, span.kind)
        parts, at = [], 0
        for span in _merged(text, [*told, *_known(text, known)]):
            parts += [text[at : span.start], f"<masked: {span.kind}, {span.end - span.start} characters>"]
            self.counts[span.kind] += 1
            at = span.end
        return "".join([*parts, text[at:]])


def _told(text: str) -> Iterator[_Span]:
    yield from _by_name(text)
    yield from _by_form(text)
    yield from _by_library(text)
    yield from _keys(text)
    yield from _random(text)


def _merged(text: str, spans: Iterable[_Span]) -> list[_Span]:
    """Spans that overlap as one, each with the lines that go on with it."""
    masks = [(found.start(), found.end()) for found in _MASK.finditer(text)]
    result: list[_Span] = []
    for span in sorted(spans):
        if any(start <= span.start < end for start, end in masks):
            continue  # it was masked before
        span = _Span(span.start, _with_what_follows(text, span), span.kind)
        if result and span.start < result[-1].end:
            last = result.pop()
            span = _Span(last.start, max(last.end, span.end), last.kind)
        if span.end > span.start:
            result.append(span)
    return result


_MASK = re.compile(r"<masked: [\w .\-]+, \d+ characters>")
_LEAST, _LONG = 4, 8
"""Characters of what is masked wherever it stands: of a variable, and of what the text itself tells."""
_PREFIX = r"(?:\([^()\n]{1,200}\) ?|\[[^\]\n]{1,60}\]:? ?)?"
"""What Ray and torchrun print in front of a line."""
_BREAK = rf"[ \t]*\\?\r?\n{_PREFIX}[ \t|│]*"
_GOES_ON = re.compile(rf"{_BREAK}(?P<more>[A-Za-z0-9+/=_\-.]{{6,}})(?=[\"',;)]*[ \t]*(?:\n|\Z))")


def _with_what_follows(text: str, span: _Span) -> int:
    """Where a secret ends that was broken into lines."""
    end = span.end
    while (
        span.end - span.start >= 16 and " " not in text[span.start : span.end] and (found := _GOES_ON.match(text, end))
    ):
        more = found["more"]
        if not (re.search(r"\d", more) and re.search(r"[A-Za-z]", more)) or _WORDLIKE.fullmatch(more):
            break
        end = found.end("more")
    return end


_WORDLIKE = re.compile(r"[A-Za-z]+\d{0,3}|\d[\d.:\-]*|(?:[A-Za-z]+[_\-.])+[A-Za-z]*\d{0,3}")

# By name.

_QUOTE = r"(?:\\*[\"'`]|%22|%27|&quot;|&#3[49];|\\+u002[27])"
_NAME = re.compile(
    r"(?:(?<![\w$])|(?<=%2[27]))\$?(?:--?)?(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*|[\u4e00-\u9fff]{0,8}?(?:密码|口令|密钥|秘钥|令牌|凭证|凭据|私钥))"
)
_SEPARATOR = re.compile(
    rf"(?P<close>{_QUOTE}?[\])]?)(?:\s\([^)\n]{{1,20}}\))?"
    rf"(?P<gap>[ \t]*(?:{_BREAK})?)"
    r"(?P<sep>=>|:=|->|→|={1,3}|(?<!:):(?!:)|[\uff1a\uff1d]|%3[AaDd]|(?:is|was|是|为)(?=[\s:\uff1a])|是|为|\\t(?=\S)"
    r"|(?<=[ \t])[|│](?=[ \t])|>(?=[^\s>]))"
    rf"(?P<type>[ \t]*(?:str|SecretStr|(?:str|Optional\[str\])(?:[ \t]*\|[ \t]*None)?)[ \t]*=(?!=)|[ \t]*!!\w+)?[ \t]*"
)
_CALLED = re.compile(rf"(?=\([ \t]*[bruf]*{_QUOTE})|{_QUOTE}[ \t]*,[ \t]*(?=[bruf]*{_QUOTE})")
_PROSE = re.compile(r"(?:[ \t]+[\w'@.\-]+){1,5}[ \t]*(?P<sep>[:\uff1a\uff1d=]|is|was)[ \t]+")
_OF_A_PAIR = re.compile(
    rf"{_QUOTE}?,?(?:{_BREAK})?[ \t]*(?:-[ \t]*)?{_QUOTE}?value{_QUOTE}?[ \t]*[:=][ \t]*", re.IGNORECASE
)
"""Behind the value of `name`: as Kubernetes has variables, and XML."""
_PAIRS = re.compile(rf"(?i)\b(?:name|key|var|variable){_QUOTE}?[ \t]*[:=][ \t]*{_QUOTE}?$")
_OPENED = re.compile(rf"(?P<letters>[bruf]{{0,2}})(?P<quote>\"\"\"|'''|{_QUOTE})")
_BLOCK = re.compile(r"[|>][+\-]?\d?[ \t]*(?:#[^\n]*)?(?=\n)")
_LINE = re.compile(r"[^\n]{0,4000}")
_BEHIND = re.compile(
    r"\s+(?:\|\|?|&&|>>?|<{1,3}|#|\\(?=\n|$)|--?[A-Za-z][\w\-]*(?=[\s=]|$))|[\s,;&]+[\"']?[A-Za-z_][\w.\-]+[\"']?\s?(?:=|:\s)"
    r"|\s+(?:python3?|bash|sh|ray|torchrun|psql|mysql|srun|env|exec|curl|git|docker|sudo)\b"
    r"|[\"'`](?=[\s,)\]}:;]|$)|\\+[\"']|&quot;|%22|<(?!masked)|\s[│|]|\\n"
)
"""What ends a value that stands without quotes and may hold anything."""
_OF_A_TOKEN = re.compile(r"[^\s\"'`<>|│\\]+")
_TRAILING = ",;:.)]}"
_NEXT = re.compile(r"[&,;][\w.\-]+=")
_CODE = re.compile(r"[A-Za-z_][\w.]*(?:\[.*|\(.*)?|lambda\b.*")
_FRAME = re.compile(rf"(?m)^{_PREFIX}\s*File \"[^\"\n]*\", line \d+[^\n]*\n(?P<code>[^\n]*)")
_LITERAL = re.compile(rf"{_QUOTE}(?P<text>[^\"'\n]*?){_QUOTE}(?P<name>[ \t]*:)?")


def _by_name(text: str) -> Iterator[_Span]:
    code = {text.rfind("\n", 0, found.start("code")) for found in _FRAME.finditer(text)}
    at = 0
    for found in _NAME.finditer(text):
        name, end = found["name"], found.end()
        if found.start() < at:
            continue
        kind = kind_of(name, text[max(0, found.start() - 24) : found.start()])
        in_code = bool(code) and text.rfind("\n", 0, found.start()) in code
        for span in _named(text, found, kind, in_code):
            at = max(at, span.end) if span.end > end else at
            yield span


def _named(text: str, found: re.Match[str], kind: Kind, in_code: bool) -> Iterator[_Span]:
    name, end = found["name"], found.end()
    if kind is Kind.HARMLESS:
        return
    if kind is Kind.PERHAPS and _is_of_an_option(found, text):
        kind = Kind.KEY if name.startswith("key") else Kind.TOKEN
    before = text[max(0, found.start() - 20) : found.start()]
    if (_PAIRS.search(before) or before.endswith("<")) and (pair := _OF_A_PAIR.match(text, end)):
        yield from _value(text, pair.end(), kind, in_code)
    elif after := _SEPARATOR.match(text, end):
        start = after.end()
        if "\n" in after["gap"] and not after["close"]:
            return
        if after["sep"] in ("is", "was") and kind is Kind.PERHAPS:
            return
        if name.endswith("login") or (
            kind is Kind.PERHAPS and text[max(0, found.start() - 6) : found.start()] == "login("
        ):
            kind = Kind.KEY
        yield from _value(text, start, _surely(name, kind, after["sep"], text, start), in_code)
    elif called := _CALLED.match(text, end):
        yield from _value(text, called.end(), _surely(name, kind, ",", text, called.end()), in_code)
    elif _is_of_an_option(found, text) and (gap := re.compile(rf"{_QUOTE}?,?(?:{_BREAK}|[ \t]+)").match(text, end)):
        word = re.compile(r"(?P<quote>[\"']?)(?P<word>(?(quote)[^\"'\s][^\"'\n]*|))|\S+").match(text, gap.end())
        if word and not text.startswith("-", gap.end()):
            yield from _option(text, gap.end(), kind)
    elif not in_code:
        yield from _prose(text, found, kind)


def _surely(name: str, kind: Kind, separator: str, text: str, at: int) -> Kind:
    """What a name says that has a value: a `token` is one, if its value is no number of a vocabulary."""
    if kind is not Kind.PERHAPS or re.compile(r"[\[(]?\d{1,6}\b").match(text, at):
        return kind
    if name.lower() == "token":
        return Kind.TOKEN
    return Kind.PASSWORD if name.lower() == "pass" and separator == "=" else kind


def _is_of_an_option(found: re.Match[str], text: str) -> bool:
    return found[0].startswith("-")


def _option(text: str, at: int, kind: Kind) -> Iterator[_Span]:
    """The word behind an option."""
    if opened := _OPENED.match(text, at):
        yield from _quoted(text, opened, kind)
    elif (word := re.compile(r"[^\s\"']+").match(text, at)) and not is_harmless(word[0], kind):
        yield _Span(*word.span(), kind.value, True)


def _prose(text: str, found: re.Match[str], kind: Kind) -> Iterator[_Span]:
    """A value that stands behind its name without anything between them but words."""
    end = found.end()
    before = text[max(0, found.start() - 60) : found.start()]
    if re.search(r"\blogin\s+\S+\s+(?:account\s+\S+\s+)?$", before) and (
        word := re.compile(r"\s+(\S+)").match(text, end)
    ):
        yield _Span(*word.span(1), kind.value, True)
        return
    if (words := _PROSE.match(text, end)) and kind in (Kind.PASSWORD, Kind.HEADER):
        between = text[end : words.start("sep")]
        if kind_of(between) is Kind.HARMLESS and not re.search(r"\b(?:error|failed|invalid|wrong)\b", between):
            yield from _value(text, words.end(), kind, False)
            return
    if words and (word := _OF_A_TOKEN.match(text, words.end())):
        value = word[0].rstrip(_TRAILING)
        if found["name"].lower() in ("key", "token") and _is_no_word(value) and not is_harmless(value, Kind.PERHAPS):
            yield _Span(word.start(), word.start() + len(value), kind.value, True)
            return
    if gap := re.compile(r"[ \t]+").match(text, end):
        if opened := _OPENED.match(text, gap.end()):
            yield from _quoted(text, opened, Kind.PERHAPS if kind is not Kind.PASSWORD else kind)
        elif word := _OF_A_TOKEN.match(text, gap.end()):
            value = word[0].rstrip(_TRAILING)
            setter = re.search(r"(?:\b(?:setenv|ENV|ARG|set|config \S+)\s+)$", before)
            if setter or (not is_harmless(value, Kind.PERHAPS) and _is_no_word(value)):
                yield _Span(word.start(), word.start() + len(value), kind.value, True)


def _is_no_word(value: str) -> bool:
    return len(value) >= 6 and bool(re.search(r"\d", value) and re.search(r"[^\W\d]", value)) and "=" not in value[:-2]


def _value(text: str, at: int, kind: Kind, in_code: bool) -> Iterator[_Span]:
    """Yield what is to be masked of the value that begins at `at`."""
    if (block := _BLOCK.match(text, at)) or re.compile(r"\\?[ \t]*\r?\n").match(text, at):
        yield from _on_next_lines(text, block.end() if block else at, kind, bool(block))
        return
    if opened := _OPENED.match(text, at):
        yield from _quoted(text, opened, kind)
        return
    if text[at : at + 1] in ("(", "[", "{"):
        yield from _inside(text, at, kind)
        return
    found = _LINE.match(text, at)
    line = found[0] if found else ""
    if kind in (Kind.PASSWORD, Kind.HEADER):
        whole = _of_anything(line, kind)
    else:
        word = _OF_A_TOKEN.match(line)
        whole = word[0].rstrip(_TRAILING) if word else ""
        if after := _NEXT.search(whole):
            whole = whole[: after.start()]
        whole = _balanced(whole)
    if not whole or is_harmless(whole, kind) or (in_code and _CODE.fullmatch(whole.rstrip(",)] "))):
        return
    if kind is not Kind.HEADER and in_code and not re.match(r"[\"'0-9]", whole):
        return
    # `os.environ[…]` and the like read a secret and are none.
    if re.match(r"(?:[A-Za-z_]\w*\.)+\w+[(\[]|\w+\((?:\)|[\"'\w])", whole):
        return
    if kind is Kind.PERHAPS and is_harmless(line, Kind.PASSWORD):
        return
    yield _Span(at, at + len(whole), kind.value, True)


def _of_anything(line: str, kind: Kind) -> str:
    if kind is Kind.HEADER:
        end = re.compile(r"[\"'`](?=[\s,)\]}]|$)|\\+[\"']|&quot;").search(line)
    else:
        end = _BEHIND.search(line)
    return _balanced(line[: end.start()] if end else line).rstrip()


def _balanced(value: str) -> str:
    """A value without what closes a bracket that was opened in front of it."""
    depth = 0
    for place, letter in enumerate(value):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 and re.match(r"[\s,;:.)\]}]|$", value[place + 1 :]):
            return value[:place]
    return value


def _quoted(text: str, opened: re.Match[str], kind: Kind) -> Iterator[_Span]:
    quoted, start = opened["quote"], opened.end()
    end = start
    while True:
        end = text.find(quoted, end)
        if end < 0 or end - start > 4000:
            line = _LINE.match(text, start)
            end = line.end() if line else len(text)
            break
        slashes = len(text[:end]) - len(text[:end].rstrip("\\")) if not quoted.startswith("\\") else 0
        if (quoted[0] in "\"'`" and slashes % 2) or (quoted.startswith("\\") and text[end - 1] == "\\"):
            end += len(quoted)
            continue
        break
    if not is_harmless(text[start:end], kind):
        yield _Span(start, end, kind.value, True)


def _inside(text: str, at: int, kind: Kind) -> Iterator[_Span]:
    """The literals in brackets that are values and no names."""
    depth, end = 0, at
    for end in range(at, min(at + 2000, len(text))):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if not depth:
            break
    literals = [found for found in _LITERAL.finditer(text, at, end) if not found["name"]]
    for found in literals:
        if not is_harmless(found["text"], kind):
            yield _Span(*found.span("text"), kind.value, True)
    if not literals:
        for word in re.compile(r"[^\s,()\[\]{}\"':]+(?![ \t]*:)").finditer(text, at, end):
            if not is_harmless(word[0], kind) and not re.match(r"[\w.]*\.\w|torch", word[0]):
                yield _Span(*word.span(), kind.value, True)


def _on_next_lines(text: str, at: int, kind: Kind, block: bool) -> Iterator[_Span]:
    """A value that begins on the next line: of YAML's blocks all lines that are indented as its first is."""
    indent: int | None = None
    while found := re.compile(rf"[ \t]*\\?\r?\n(?:{_PREFIX})(?P<indent>[ \t]*)(?P<line>[^\n]*\S)").match(text, at):
        deep = len(found["indent"])
        if (
            not deep
            or (indent is not None and deep < indent)
            or re.match(r"[\"']?[\w.\-]+[\"']?\s*[:=](?:\s|$)", found["line"])
        ):
            return
        indent = deep
        if block:
            yield _Span(*found.span("line"), kind.value, True)
            at = found.end()
            continue
        yield from _value(text, found.start("line"), kind, False)
        return


# By form.

_FORMS = tuple(
    (kind, re.compile(pattern))
    for line in Path(__file__).with_name("forms.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
    for kind, pattern in [line.split(": ", 1)]
)


def _by_form(text: str) -> Iterator[_Span]:
    for kind, pattern in _FORMS:
        for found in pattern.finditer(text):
            if "value" in pattern.groupindex:
                value = found["value"]
                if not is_harmless(value, Kind.PERHAPS if kind == "token" else Kind.KEY):
                    yield _Span(*found.span("value"), kind, True)
            elif len(re.findall(r"\d", found[0])) > 1 or re.search("[a-z][A-Z]", found[0]):
                yield _Span(*found.span(), kind, True)


_TOO_WIDE = (
    "BasicAuth",
    "Entropy",
    "IPPublic",
    "Keyword",
    "PrivateKey",
    "Artifactory",
    "Cloudant",
    "Softlayer",
    "Ibm",
    "Npm",
)
"""Detectors that go by a name, which is known better here, that take words for secrets, or too much time."""


@cache
def _detectors() -> tuple[tuple[str, RegexBasedDetector], ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    found: Mapping[str, type[object]] = get_mapping_from_secret_type_to_class()
    return tuple(
        (kind.lower(), made())
        for kind, made in found.items()
        if issubclass(made, RegexBasedDetector) and not any(each in made.__name__ for each in _TOO_WIDE)
    )


def _by_library(text: str) -> Iterator[_Span]:
    """What detect-secrets knows by its form."""
    for kind, detector in _detectors():
        for pattern in detector.denylist:
            yield from (_Span(*found.span(), kind, True) for found in pattern.finditer(text))


# Keys as OpenSSL and SSH write them, whose beginning or end may be missing.

_KEY = re.compile(
    r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|(?=\n[^\n]*[^\nA-Za-z0-9+/=\\\"' ()_,.:\-])|\Z)", re.DOTALL
)
_BASE64 = rf"(?:\r?\n|\\n){_PREFIX}[ \t\"']*[A-Za-z0-9+/=]{{4,}}[\"',]*(?=[ \t\r]*(?:\n|\\n|\Z|-))"
_FULL = r"[A-Za-z0-9+/]{60,80}"
_BARE = re.compile(
    rf"(?m)^{_PREFIX}[ \t\"']*(?P<first>{_FULL})[\"',]*[ \t]*(?:{_BASE64})*|(?:{_BASE64})+(?=\s*{_PREFIX}-----END)"
)


def _keys(text: str) -> Iterator[_Span]:
    for found in _KEY.finditer(text):
        begun = text.index("-----", found.start() + 11) + 5
        whole = re.compile(rf"(?:{_BASE64}|\s|\\n)*").match(text, begun)
        end = found.end() if "-----END" in found[0] else (whole.end() if whole else begun)
        yield _Span(found.start(), max(end, begun), "private key", False)
    for found in _BARE.finditer(text):
        start = found.start("first") if found["first"] else found.start()
        if not found["first"] or (re.search(r"\d", found["first"]) and re.search("[a-z]", found["first"])):
            yield _Span(start, found.end(), "private key", False)


# Without a name.

_BLOB = re.compile(r"(?<![A-Za-z0-9_+/])[A-Za-z0-9][A-Za-z0-9_+/\-.~%]{19,}={0,2}")
_HEX = re.compile(r"(?<![\w@:/+.\-])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?!\w)")
_OF_A_HASH = re.compile(
    r"(?i)(?<![a-z])(?:commit|sha\d*|rev(?:ision)?|hash|md5|digest|ids?|uuid|actor|node|job|worker|object|group|head|ref|checksum|etag"
    r"|blob|trace|snapshots?|fingerprint|tag|image|merge|branch|at|@)[\W_]*(?:\w+[\W_]+){0,2}$"
)
_KNOWN_BLOB = re.compile(r"[\w.\-]+(?:/[\w.\-]+)+|(?:triton|aclnn|npu|torch|kernel)[A-Za-z_]*\w*|.*(?:\dd){3}.*")


def _random(text: str) -> Iterator[_Span]:
    for found in _BLOB.finditer(text):
        blob = found[0]
        is_path = _KNOWN_BLOB.fullmatch(blob) and "+" not in blob and not blob.endswith("=")
        at = found.start()
        if (digits := re.search("[0-9a-f]{24,}", blob)) and _OF_A_HASH.search(
            text[max(0, at - 20) : at + digits.start()]
        ):
            continue
        for part in re.split("(/)", blob) if is_path else [blob]:
            is_name = (
                _UUID.search(part) or re.fullmatch("[0-9a-f]+", part) or (is_path and not re.search("[A-Z]", part))
            )
            if not is_name and is_random(part):
                yield _Span(at, at + len(part), "what looks random", False)
            at += len(part)
    for found in _HEX.finditer(text):
        if not _OF_A_HASH.search(text[max(0, found.start() - 40) : found.start()]):
            yield _Span(*found.span(), "what looks random", False)


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# What is known to be secret, wherever it stands.

_LEFT_OUT = re.compile(rf"\r?\n{_PREFIX}|[\s\\\"'│|]")


def _known(text: str, known: Mapping[str, str]) -> Iterator[_Span]:
    """Occurrences of values: as they are, escaped, encoded, and broken into lines."""
    if not known:
        return
    kept: list[int] = []
    at = 0
    for found in _LEFT_OUT.finditer(text):
        kept += range(at, found.start())
        at = found.end()
    kept += range(at, len(text))
    squeezed = "".join(text[place] for place in kept)
    for value, kind in known.items():
        bare = _LEFT_OUT.sub("", value)
        if len(bare) < 6:
            pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
            yield from (_Span(*found.span(), kind) for found in re.finditer(pattern, text) if value.strip())
            continue
        for form in {bare, *map(_squeeze, _encoded(value))}:
            start = squeezed.find(form)
            while start >= 0:
                yield _Span(kept[start], kept[start + len(form) - 1] + 1, kind)
                start = squeezed.find(form, start + len(form))


def _squeeze(text: str) -> str:
    return _LEFT_OUT.sub("", text)


def _encoded(value: str) -> Iterator[str]:
    """A value in URLs, in base64 at each of the three places where it may begin, and as hexadecimal digits."""
    for given in {value, unquote(value)}:
        yield quote(given, safe="")
        yield quote(given)
        yield quote(given, safe="").replace("%20", "+")
        data = given.encode()
        yield data.hex()
        for before in range(3):
            whole = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
            # The first and the last letters have bits of what stands beside it.
            part = whole[(0, 2, 3)[before] : -1 if (before + len(data)) % 3 else None]
            if len(part) >= 6:
                yield part
                yield part.replace("+", "-").replace("/", "_")
