"""Texts for strangers contain no secret, whatever its form, and keep everything that a diagnosis needs."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from verl_npu_workbench.secrecy.redaction import Redaction

HERE = Path(__file__).parent
LEAST = 5
"""The number of a value's characters that may not be seen in one piece."""

ALPHANUMERIC = string.ascii_letters + string.digits
WORDS = ("violet", "harbour", "cactus", "tundra", "walnut", "ember", "lagoon", "pewter")


@dataclass(slots=True)
class Values:
    """Makes secret values of the kinds that the forms name, and keeps them."""

    drawn: random.Random
    made: list[str] = field(default_factory=list)

    def __call__(self, kind: str) -> str:
        value = self._value(kind)
        self.made += value.split("\n")
        return value

    def _some(self, alphabet: str, count: int) -> str:
        return "".join(self.drawn.choices(alphabet, k=count))

    def _value(self, kind: str) -> str:
        lower = string.ascii_lowercase
        if found := re.fullmatch(r"(b62|hex|lower|upper)x?(\d+)", kind):
            alphabet = {
                "b62": ALPHANUMERIC,
                "hex": "0123456789abcdef",
                "lower": lower + string.digits,
                "upper": string.ascii_uppercase + string.digits,
            }[found[1]]
            return self._some(alphabet, int(found[2]))
        match kind:
            case "word":
                return self._some(lower, 9)
            case "pw":
                return f"{self._some(lower, 5)}{self._some(string.digits, 2)}-{self._some(ALPHANUMERIC, 4)}"
            case "digits":
                return str(self.drawn.randrange(10**8, 10**9))
            case "phrase":
                return " ".join(self.drawn.sample(WORDS, 3))
            case "odd":
                first = self._some(ALPHANUMERIC, 4)
                return f"{first}, {self._some(lower, 4)};{self._some(lower, 3)}&{self._some(lower, 4)}"
            case "odd2":
                return f"{self._some(lower, 4)},{self._some(lower, 4)};{self._some(lower, 3)}&{self._some(lower, 4)}"
            case "uni":
                return f"пароль{self._some(string.digits, 4)}密语"
            case "quoted":
                return f'{self._some(lower, 5)}"{self._some(lower, 5)}\\{self._some(lower, 5)}'
            case "b62":
                return self._some(ALPHANUMERIC, 32)
            case "b62half" | "b62rest":
                return self._some(ALPHANUMERIC, 20)
            case "upper":
                return self._some(string.ascii_uppercase + string.digits, 20)
            case "b64":
                return base64.b64encode(self.drawn.randbytes(30)).decode()[:-1] + "="
            case "pem":
                return base64.b64encode(self.drawn.randbytes(48)).decode()
            case "uuid":
                return "-".join(self._some("0123456789abcdef", count) for count in (8, 4, 4, 4, 12))
        raise ValueError(kind)


ENCODED: dict[str, Callable[[str], str]] = {
    "": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json2": lambda value: json.dumps(json.dumps(value))[1:-1],
    "url": quote,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64user": lambda value: base64.b64encode(f"me:{value}".encode()).decode(),
    "half": lambda value: value[: len(value) // 2],
    "rest": lambda value: value[len(value) // 2 :],
}


def lines_of(name: str) -> list[str]:
    lines = (HERE / name).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def filled(form: str) -> tuple[str, dict[str, str], list[str]]:
    """Return a form's text, the variables that are set, and the secrets that must not be seen."""
    values = Values(random.Random(form))
    environ = {}

    def generated(part: str) -> str:
        return re.sub(r"\{([a-z][a-z0-9]*)\}", lambda found: values(found[1]), part)

    def encoded(found: re.Match[str]) -> str:
        value = ENCODED[found[2] or ""](values.made[int(found[1])])
        values.made.append(value)
        return value

    given, _, text = form.rpartition(" >>> ")
    if given:
        name, _, value = generated(given).partition("=")
        environ[name] = value
        if value not in values.made:
            values.made.insert(0, "")
    text = re.sub(r"\{(\d)(?::(\w+))?\}", encoded, generated(text))
    return text.replace("⏎", "\n"), environ, [value for value in values.made if value]


def seen(secrets: list[str], shown: str) -> Iterator[str]:
    """Yield the pieces of secrets that are in a text."""
    without = re.sub(r"<masked: [^>]*>|\s", "", shown)
    for secret in (re.sub(r"\s", "", each) for each in secrets):
        pieces = (secret[at : at + LEAST] for at in range(max(len(secret) - LEAST, 0) + 1))
        yield from (piece for piece in pieces if piece in without)


@pytest.mark.parametrize("form", lines_of("secret_forms.txt"))
def test_no_secret_is_shown(form: str) -> None:
    text, environ, secrets = filled(form)
    shown = Redaction(environ=environ)(text)
    assert list(seen(secrets, shown)) == [], shown


@pytest.mark.parametrize("line", lines_of("harmless_lines.txt"))
def test_what_a_diagnosis_needs_is_shown(line: str) -> None:
    text = line.replace("⏎", "\n")
    assert "<masked" not in Redaction(environ={})(text)
