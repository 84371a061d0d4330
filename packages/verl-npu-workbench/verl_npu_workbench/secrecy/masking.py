"""Masks possible secrets in a text. A secret is recognized by the name before it, by its form, as the value of a known
variable, or because it looks random.

If a name may belong to a secret, the value is masked unless it is known to be harmless. `names` judges names and
values.
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

_ORDINARY = re.compile(r"\d{1,6}|[a-z_]{1,16}|\.{0,2}/[\w./\-]*")
"""An ordinary value: a small number, a short word, or a path."""


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's value may be a secret. A small number, a short word, or a path counts as a secret
    only if the variable's name is clearly the name of a password."""
    kind = kind_of(name)
    if kind in (Kind.HARMLESS, Kind.PERHAPS) or is_harmless(value, kind):
        text = f"{name}={value}"
        return any(span.start > len(name) for span in (*_by_name(text), *_by_form(text)))
    # Names that are only perhaps a password's become harmless with "_id" behind them.
    is_password = kind is Kind.PASSWORD and kind_of(f"{name}_id") is not Kind.HARMLESS
    return is_password or not _ORDINARY.fullmatch(value)


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    start: int
    end: int
    kind: str
    known: bool = False
    """Whether a name or a form shows that this is a secret. It is then masked everywhere in the text."""


_SHORTEST_VALUE, _SHORTEST_SECRET = 4, 8
"""The minimum lengths of a secret that is masked everywhere: if it is the value of a variable, and if it was found in
the text itself."""


class Masking:
    """Masks secrets, and counts them by their kind."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` contains environment variables. If the name of one may belong to a secret, its value is masked
        everywhere."""
        self.counts: Counter[str] = Counter()
        self._known: dict[str, str] = {}
        for name, value in environ.items():
            kind = kind_of(name)
            if kind not in (Kind.HARMLESS, Kind.PERHAPS) and not is_harmless(value, kind):
                self._known[value] = kind.value
            else:
                self._learn(f"{name}={value}")

    def _learn(self, text: str) -> None:
        for span in _secrets(text):
            if span.known and len(value := text[span.start : span.end].strip()) >= _SHORTEST_VALUE:
                self._known.setdefault(value, span.kind)

    def __call__(self, text: str) -> str:
        """Return a text with its secrets masked."""
        secrets = list(_secrets(text))
        known = dict(self._known)
        for span in secrets:
            value = text[span.start : span.end]
            if span.known and len(value) >= _SHORTEST_SECRET and not value.isalpha() and "\n" not in value:
                known.setdefault(value, span.kind)
        parts, at = [], 0
        for span in _merged(text, [*secrets, *_occurrences(text, known)]):
            parts += [text[at : span.start], f"<masked: {span.kind}, {span.end - span.start} characters>"]
            self.counts[span.kind] += 1
            at = span.end
        return "".join([*parts, text[at:]])


def _secrets(text: str) -> Iterator[_Span]:
    yield from _by_name(text)
    yield from _by_form(text)
    yield from _by_library(text)
    yield from _private_keys(text)
    yield from _random(text)


_MASK = re.compile(r"<masked: [\w .\-]+, \d+ characters>")


def _merged(text: str, spans: Iterable[_Span]) -> list[_Span]:
    """Return the spans in order. Overlapping spans are merged, and each span is extended over its continuation
    lines."""
    masks = [found.span() for found in _MASK.finditer(text)]
    result: list[_Span] = []
    for span in sorted(spans):
        if any(start <= span.start < end for start, end in masks):
            continue  # it has been masked before
        span = _Span(span.start, _end_of_continuation(text, span), span.kind)
        if result and span.start < result[-1].end:
            last = result.pop()
            span = _Span(last.start, max(last.end, span.end), last.kind)
        if span.end > span.start:
            result.append(span)
    return result


_PREFIX = r"(?:\([^()\n]{1,200}\) ?|\[[^\]\n]{1,60}\]:? ?)?"
"""The prefix of a line that Ray or torchrun prints."""
_BREAK = rf"[ \t]*\\?\r?\n{_PREFIX}[ \t|│]*"
_CONTINUATION = re.compile(rf"{_BREAK}(?P<more>[A-Za-z0-9+/=_\-.]{{6,}})(?=[\"',;)]*[ \t]*(?:\n|\Z))")
_WORDLIKE = re.compile(r"[A-Za-z]+\d{0,3}|\d[\d.:\-]*|(?:[A-Za-z]+[_\-.])+[A-Za-z]*\d{0,3}")
_SHORTEST_BROKEN = 16


def _end_of_continuation(text: str, span: _Span) -> int:
    """Return the end of a secret that may continue on several lines."""
    end = span.end
    if end - span.start < _SHORTEST_BROKEN or " " in text[span.start : end]:
        return end
    while found := _CONTINUATION.match(text, end):
        more = found["more"]
        if not (re.search(r"\d", more) and re.search(r"[A-Za-z]", more)) or _WORDLIKE.fullmatch(more):
            break
        end = found.end("more")
    return end


# Secrets behind a name.

_QUOTE = r"(?:\\*[\"'`]|%22|%27|&quot;|&#3[49];|\\+u002[27])"
_NAME = re.compile(
    r"(?:(?<![\w$])|(?<=%2[27]))\$?(?:--?)?(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*|[\u4e00-\u9fff]{0,8}?(?:密码|口令|密钥|秘钥|令牌|凭证|凭据|私钥))"
)
_SEPARATOR = re.compile(
    rf"(?P<close>{_QUOTE}?[\])]?)(?:\s\([^)\n]{{1,20}}\))?"
    rf"(?P<gap>[ \t]*(?:{_BREAK})?)"
    r"(?P<sep>=>|:=|->|→|={1,3}|(?<!:):(?!:)|[\uff1a\uff1d]|%3[AaDd]|(?:is|was|是|为)(?=[\s:\uff1a])|是|为|\\t(?=\S)"
    r"|(?<=[ \t])[|│](?=[ \t])|>(?=[^\s>]))"
    rf"(?:[ \t]*(?:str|SecretStr|(?:str|Optional\[str\])(?:[ \t]*\|[ \t]*None)?)[ \t]*=(?!=)|[ \t]*!!\w+)?[ \t]*"
)
_CALL = re.compile(rf"(?=\([ \t]*[bruf]*{_QUOTE})|{_QUOTE}[ \t]*,[ \t]*(?=[bruf]*{_QUOTE})")
"""The text between a name and its value in a call: after the name of a function, or after a name that is itself an
argument."""
_PAIR_KEY = re.compile(rf"(?i)\b(?:name|key|var|variable){_QUOTE}?[ \t]*[:=][ \t]*{_QUOTE}?$")
_PAIR_VALUE = re.compile(
    rf"{_QUOTE}?,?(?:{_BREAK})?[ \t]*(?:-[ \t]*)?{_QUOTE}?value{_QUOTE}?[ \t]*[:=][ \t]*", re.IGNORECASE
)
"""The text before the value in a pair `name: …` and `value: …`, as in Kubernetes and XML."""
_OPTION_GAP = re.compile(rf"{_QUOTE}?,?(?:{_BREAK}|[ \t]+)")
_OPTION_VALUE = re.compile(r"[^\s\"']+")
_PROSE = re.compile(r"(?:[ \t]+[\w'@.\-]+){1,5}[ \t]*(?P<sep>[:\uff1a\uff1d=]|is|was)[ \t]+")
_LOGIN = re.compile(r"\blogin\s+\S+\s+(?:account\s+\S+\s+)?$")
_SETTER = re.compile(r"(?:\b(?:setenv|ENV|ARG|set|config \S+)\s+)$")
_FAILURE = re.compile(r"\b(?:error|failed|invalid|wrong)\b")
_VOCABULARY_NUMBER = re.compile(r"[\[(]?\d{1,6}\b")
_OPENING = re.compile(rf"[bruf]{{0,2}}(?P<quote>\"\"\"|'''|{_QUOTE})")
_YAML_BLOCK = re.compile(r"[|>][+\-]?\d?[ \t]*(?:#[^\n]*)?(?=\n)")
_LINE_END = re.compile(r"\\?[ \t]*\r?\n")
_NEXT_LINE = re.compile(rf"[ \t]*\\?\r?\n(?:{_PREFIX})(?P<indent>[ \t]*)(?P<line>[^\n]*\S)")
_ASSIGNMENT = re.compile(r"[\"']?[\w.\-]+[\"']?\s*[:=](?:\s|$)")
_VALUE_END = re.compile(
    r"\s+(?:\|\|?|&&|>>?|<{1,3}|#|\\(?=\n|$)|--?[A-Za-z][\w\-]*(?=[\s=]|$))|[\s,;&]+[\"']?[A-Za-z_][\w.\-]+[\"']?\s?(?:=|:\s)"
    r"|\s+(?:python3?|bash|sh|ray|torchrun|psql|mysql|srun|env|exec|curl|git|docker|sudo)\b"
    r"|[\"'`](?=[\s,)\]}:;]|$)|\\+[\"']|&quot;|%22|<(?!masked)|\s[│|]|\\n"
)
"""The end of a value that is not quoted and may contain any characters."""
_HEADER_END = re.compile(r"[\"'`](?=[\s,)\]}]|$)|\\+[\"']|&quot;")
_WORD = re.compile(r"[^\s\"'`<>|│\\]+")
_TRAILING = ",;:.)]}"
_NEXT_SETTING = re.compile(r"[&,;][\w.\-]+=")
_CODE = re.compile(r"[A-Za-z_][\w.]*(?:\[.*|\(.*)?|lambda\b.*")
_READS_SECRET = re.compile(r"(?:[A-Za-z_]\w*\.)+\w+[(\[]|\w+\((?:\)|[\"'\w])")
"""Code that reads a secret, such as `os.environ[…]`, but that does not contain the secret."""
_FRAME = re.compile(rf"(?m)^{_PREFIX}\s*File \"[^\"\n]*\", line \d+[^\n]*\n(?P<code>[^\n]*)")
_LITERAL = re.compile(rf"{_QUOTE}(?P<text>[^\"'\n]*?){_QUOTE}(?P<name>[ \t]*:)?")
_BARE_ITEM = re.compile(r"[^\s,()\[\]{}\"':]+(?![ \t]*:)")
_LONGEST_LINE, _LONGEST_BRACKETS = 4000, 2000


def _by_name(text: str) -> Iterator[_Span]:
    """Yield the values of all names in a text that may belong to secrets."""
    code_lines = {text.rfind("\n", 0, found.start("code")) for found in _FRAME.finditer(text)}
    at = 0
    for found in _NAME.finditer(text):
        if found.start() < at:
            continue
        kind = kind_of(found["name"], text[max(0, found.start() - 24) : found.start()])
        if kind is Kind.HARMLESS:
            continue
        in_code = bool(code_lines) and text.rfind("\n", 0, found.start()) in code_lines
        for span in _named(text, found, kind, in_code):
            if span.end > found.end():
                at = max(at, span.end)
            yield span


def _named(text: str, found: re.Match[str], kind: Kind, in_code: bool) -> Iterator[_Span]:
    """Yield the value that belongs to one name: in a pair, after a separator, in a call, of an option, or in prose."""
    name, end = found["name"], found.end()
    is_option = found[0].startswith("-")
    if kind is Kind.PERHAPS and is_option:
        kind = Kind.KEY if name.startswith("key") else Kind.TOKEN
    before = text[max(0, found.start() - 20) : found.start()]
    if (_PAIR_KEY.search(before) or before.endswith("<")) and (pair := _PAIR_VALUE.match(text, end)):
        yield from _value(text, pair.end(), kind, in_code)
    elif separator := _SEPARATOR.match(text, end):
        if "\n" in separator["gap"] and not separator["close"]:
            return
        if separator["sep"] in ("is", "was") and kind is Kind.PERHAPS:
            return
        if name.endswith("login") or (kind is Kind.PERHAPS and before.endswith("login(")):
            kind = Kind.KEY
        kind = _with_value(name, kind, separator["sep"], text, separator.end())
        yield from _value(text, separator.end(), kind, in_code)
    elif call := _CALL.match(text, end):
        yield from _value(text, call.end(), _with_value(name, kind, ",", text, call.end()), in_code)
    elif is_option and (gap := _OPTION_GAP.match(text, end)):
        if not text.startswith("-", gap.end()):
            yield from _option_value(text, gap.end(), kind)
    elif not in_code:
        yield from _prose(text, found, kind)


def _with_value(name: str, kind: Kind, separator: str, text: str, at: int) -> Kind:
    """Return the kind of a name, given its value. A `token` is a secret unless its value is an id in a vocabulary."""
    if kind is not Kind.PERHAPS or _VOCABULARY_NUMBER.match(text, at):
        return kind
    if name.lower() == "token":
        return Kind.TOKEN
    return Kind.PASSWORD if name.lower() == "pass" and separator == "=" else kind


def _option_value(text: str, at: int, kind: Kind) -> Iterator[_Span]:
    """Yield the word that follows an option."""
    if opening := _OPENING.match(text, at):
        yield from _quoted(text, opening, kind)
    elif (word := _OPTION_VALUE.match(text, at)) and not is_harmless(word[0], kind):
        yield _Span(*word.span(), kind.value, True)


def _prose(text: str, found: re.Match[str], kind: Kind) -> Iterator[_Span]:
    """Yield a value in prose. Only words or blanks separate it from its name."""
    end = found.end()
    before = text[max(0, found.start() - 60) : found.start()]
    if _LOGIN.search(before) and (word := re.compile(r"\s+(\S+)").match(text, end)):
        yield _Span(*word.span(1), kind.value, True)
        return
    if words := _PROSE.match(text, end):
        between = text[end : words.start("sep")]
        is_plain = kind_of(between) is Kind.HARMLESS and not _FAILURE.search(between)
        if is_plain and kind in (Kind.PASSWORD, Kind.HEADER):
            yield from _value(text, words.end(), kind, False)
            return
        value = _word(text, words.end()) or ""
        if found["name"].lower() in ("key", "token") and _is_suspicious(value):
            yield _Span(words.end(), words.end() + len(value), kind.value, True)
            return
    if gap := re.compile(r"[ \t]+").match(text, end):
        at = gap.end()
        if opening := _OPENING.match(text, at):
            yield from _quoted(text, opening, kind if kind is Kind.PASSWORD else Kind.PERHAPS)
        elif (behind := _word(text, at)) is not None and (_SETTER.search(before) or _is_suspicious(behind)):
            yield _Span(at, at + len(behind), kind.value, True)


def _word(text: str, at: int = 0) -> str | None:
    """Return the word at a position, without punctuation at its end, or None if there is no word."""
    found = _WORD.match(text, at)
    return found[0].rstrip(_TRAILING) if found else None


def _is_suspicious(value: str) -> bool:
    """Return whether a value in prose looks like a secret, that is, whether it mixes letters and digits."""
    mixes = re.search(r"\d", value) and re.search(r"[^\W\d]", value)
    return len(value) >= 6 and bool(mixes) and "=" not in value[:-2] and not is_harmless(value, Kind.PERHAPS)


def _value(text: str, at: int, kind: Kind, in_code: bool) -> Iterator[_Span]:
    """Yield the parts, to be masked, of the value that begins at `at`."""
    block = _YAML_BLOCK.match(text, at)
    if block or _LINE_END.match(text, at):
        yield from _on_next_lines(text, block.end() if block else at, kind, bool(block))
    elif opening := _OPENING.match(text, at):
        yield from _quoted(text, opening, kind)
    elif text.startswith(("(", "[", "{"), at):
        yield from _in_brackets(text, at, kind)
    else:
        line = _rest_of_line(text, at)
        value = _unquoted(line, kind)
        # `key` and `token` are also words of prose.
        is_prose = kind is Kind.PERHAPS and is_harmless(line, Kind.PASSWORD)
        if value and not (is_harmless(value, kind) or is_prose or _is_code(value, kind, in_code)):
            yield _Span(at, at + len(value), kind.value, True)


def _rest_of_line(text: str, at: int) -> str:
    end = text.find("\n", at, at + _LONGEST_LINE)
    return text[at : end if end >= 0 else at + _LONGEST_LINE]


def _unquoted(line: str, kind: Kind) -> str:
    """Return the unquoted value at the beginning of a line: the whole line for a password or a header, otherwise one
    word."""
    if kind in (Kind.PASSWORD, Kind.HEADER):
        end = (_HEADER_END if kind is Kind.HEADER else _VALUE_END).search(line)
        return _balanced(line[: end.start()] if end else line).rstrip()
    word = _word(line) or ""
    setting = _NEXT_SETTING.search(word)
    return _balanced(word[: setting.start()] if setting else word)


def _is_code(value: str, kind: Kind, in_code: bool) -> bool:
    """Return whether a value is code and therefore not a secret. `in_code` is true for a line of code in a
    traceback."""
    if _READS_SECRET.match(value):
        return True
    is_literal = kind is Kind.HEADER or re.match(r"[\"'0-9]", value)
    return in_code and (not is_literal or bool(_CODE.fullmatch(value.rstrip(",)] "))))


def _balanced(value: str) -> str:
    """Cut a value before the first closing bracket whose opening bracket is not in the value."""
    depth = 0
    for place, letter in enumerate(value):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 and re.match(r"[\s,;:.)\]}]|$", value[place + 1 :]):
            return value[:place]
    return value


def _quoted(text: str, opening: re.Match[str], kind: Kind) -> Iterator[_Span]:
    """Yield the text between quotes. If the quotes are not closed, yield the rest of the line."""
    quotes, start = opening["quote"], opening.end()
    end = text.find(quotes, start)
    while 0 <= end <= start + _LONGEST_LINE and _is_escaped(text, end, quotes):
        end = text.find(quotes, end + len(quotes))
    if end < 0 or end > start + _LONGEST_LINE:
        end = start + len(_rest_of_line(text, start))
    if not is_harmless(text[start:end], kind):
        yield _Span(start, end, kind.value, True)


def _is_escaped(text: str, at: int, quotes: str) -> bool:
    if quotes.startswith("\\"):
        return text[at - 1] == "\\"
    slashes = at - len(text[:at].rstrip("\\"))
    return quotes[0] in "\"'`" and slashes % 2 == 1


def _in_brackets(text: str, at: int, kind: Kind) -> Iterator[_Span]:
    """Yield the literals in brackets that are values and not names. If there are no literals, yield the bare items."""
    depth, end = 0, at
    for end in range(at, min(at + _LONGEST_BRACKETS, len(text))):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if not depth:
            break
    literals = [found for found in _LITERAL.finditer(text, at, end) if not found["name"]]
    for found in literals:
        if not is_harmless(found["text"], kind):
            yield _Span(*found.span("text"), kind.value, True)
    if not literals:
        for item in _BARE_ITEM.finditer(text, at, end):
            if not is_harmless(item[0], kind) and not re.match(r"[\w.]*\.\w|torch", item[0]):
                yield _Span(*item.span(), kind.value, True)


def _on_next_lines(text: str, at: int, kind: Kind, block: bool) -> Iterator[_Span]:
    """Yield a value that begins on the next line. In a YAML block, the value has all lines that are indented at least
    as far."""
    least: int | None = None
    while found := _NEXT_LINE.match(text, at):
        indent = len(found["indent"])
        if not indent or (least is not None and indent < least) or _ASSIGNMENT.match(found["line"]):
            return
        least = indent
        if not block:
            yield from _value(text, found.start("line"), kind, False)
            return
        yield _Span(*found.span("line"), kind.value, True)
        at = found.end()


# Secrets with a form of their own.

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


_UNUSED_DETECTORS = (
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
"""Detectors that are not used, because they go by names, as this module does itself; because they mistake words for
secrets; or because they are too slow."""


@cache
def _detectors() -> tuple[tuple[str, RegexBasedDetector], ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    found: Mapping[str, type[object]] = get_mapping_from_secret_type_to_class()
    return tuple(
        (kind.lower(), made())
        for kind, made in found.items()
        if issubclass(made, RegexBasedDetector) and not any(each in made.__name__ for each in _UNUSED_DETECTORS)
    )


def _by_library(text: str) -> Iterator[_Span]:
    """Yield the secrets whose form the library detect-secrets knows."""
    for kind, detector in _detectors():
        for pattern in detector.denylist:
            yield from (_Span(*found.span(), kind, True) for found in pattern.finditer(text))


# Private keys as OpenSSL and SSH write them. Their beginning or end may be missing.

_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|(?=\n[^\n]*[^\nA-Za-z0-9+/=\\\"' ()_,.:\-])|\Z)", re.DOTALL
)
_KEY_LINE = rf"(?:\r?\n|\\n){_PREFIX}[ \t\"']*[A-Za-z0-9+/=]{{4,}}[\"',]*(?=[ \t\r]*(?:\n|\\n|\Z|-))"
_FULL_LINE = r"[A-Za-z0-9+/]{60,80}"
_BARE_KEY = re.compile(
    rf"(?m)^{_PREFIX}[ \t\"']*(?P<first>{_FULL_LINE})[\"',]*[ \t]*(?:{_KEY_LINE})*"
    rf"|(?:{_KEY_LINE})+(?=\s*{_PREFIX}-----END)"
)


def _private_keys(text: str) -> Iterator[_Span]:
    for found in _KEY_BLOCK.finditer(text):
        end_of_begin = text.index("-----", found.start() + len("-----BEGIN ")) + len("-----")
        lines = re.compile(rf"(?:{_KEY_LINE}|\s|\\n)*").match(text, end_of_begin)
        end = found.end() if "-----END" in found[0] else (lines.end() if lines else end_of_begin)
        yield _Span(found.start(), max(end, end_of_begin), "private key")
    for found in _BARE_KEY.finditer(text):
        first = found["first"]
        if not first:
            yield _Span(*found.span(), "private key")
        elif re.search(r"\d", first) and re.search("[a-z]", first):
            yield _Span(found.start("first"), found.end(), "private key")


# Random text without a name.

_BLOB = re.compile(r"(?<![A-Za-z0-9_+/])[A-Za-z0-9][A-Za-z0-9_+/\-.~%]{19,}={0,2}")
_HEX = re.compile(r"(?<![\w@:/+.\-])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?!\w)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HASH_NAME = re.compile(
    r"(?i)(?<![a-z])(?:commit|sha\d*|rev(?:ision)?|hash|md5|digest|ids?|uuid|actor|node|job|worker|object|group|head|ref|checksum|etag"
    r"|blob|trace|snapshots?|fingerprint|tag|image|merge|branch|at|@)[\W_]*(?:\w+[\W_]+){0,2}$"
)
"""A name, before a value, of a hash or an identifier."""
_KNOWN_BLOB = re.compile(r"[\w.\-]+(?:/[\w.\-]+)+|(?:triton|aclnn|npu|torch|kernel)[A-Za-z_]*\w*|.*(?:\dd){3}.*")
"""A path or the name of a kernel, such as Triton's names with 0d1d2d for the arguments."""
_RANDOM = "what looks random"
"""The kind of values that look random. In the order of spans it comes after all other kinds, so a more exact kind at
the same place wins."""


def _random(text: str) -> Iterator[_Span]:
    for found in _BLOB.finditer(text):
        blob, at = found[0], found.start()
        is_path = _KNOWN_BLOB.fullmatch(blob) and "+" not in blob and not blob.endswith("=")
        digits = re.search("[0-9a-f]{24,}", blob)
        if digits and _HASH_NAME.search(text[max(0, at - 20) : at + digits.start()]):
            continue
        for part in re.split("(/)", blob) if is_path else [blob]:
            is_name = (
                _UUID.search(part) or re.fullmatch("[0-9a-f]+", part) or (is_path and not re.search("[A-Z]", part))
            )
            if not is_name and is_random(part):
                yield _Span(at, at + len(part), _RANDOM)
            at += len(part)
    for found in _HEX.finditer(text):
        if not _HASH_NAME.search(text[max(0, found.start() - 40) : found.start()]):
            yield _Span(*found.span(), _RANDOM)


# Known secrets, wherever they occur.

_IGNORED = re.compile(rf"\r?\n{_PREFIX}|[\s\\\"'│|]")
"""Characters that are added when a value is broken into lines or escaped."""
_SHORTEST_SEARCHED = 6


def _occurrences(text: str, known: Mapping[str, str]) -> Iterator[_Span]:
    """Yield the places at which known values occur. The values may be escaped, encoded, or broken into lines."""
    if not known:
        return
    places: list[int] = []
    at = 0
    for found in _IGNORED.finditer(text):
        places += range(at, found.start())
        at = found.end()
    places += range(at, len(text))
    squeezed = "".join(text[place] for place in places)
    for value, kind in known.items():
        if len(_squeezed(value)) < _SHORTEST_SEARCHED:
            pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
            yield from (_Span(*found.span(), kind) for found in re.finditer(pattern, text) if value.strip())
            continue
        for form in {_squeezed(each) for each in (value, *_encoded(value))}:
            start = squeezed.find(form)
            while start >= 0:
                yield _Span(places[start], places[start + len(form) - 1] + 1, kind)
                start = squeezed.find(form, start + len(form))


def _squeezed(text: str) -> str:
    return _IGNORED.sub("", text)


def _encoded(value: str) -> Iterator[str]:
    """Yield the encoded forms of a value: as in URLs, as hexadecimal digits, and as base64 at each of the three
    possible offsets."""
    for given in {value, unquote(value)}:
        yield quote(given, safe="")
        yield quote(given)
        yield quote(given, safe="").replace("%20", "+")
        data = given.encode()
        yield data.hex()
        for offset in range(3):
            whole = base64.b64encode(b"\0" * offset + data).decode().rstrip("=")
            # The first and last letters also contain bits of the neighbouring bytes.
            part = whole[(0, 2, 3)[offset] : -1 if (offset + len(data)) % 3 else None]
            if len(part) >= _SHORTEST_SEARCHED:
                yield part
                yield part.replace("+", "-").replace("/", "_")
