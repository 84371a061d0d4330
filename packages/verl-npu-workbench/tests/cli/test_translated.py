"""Every sentence that a command prints can be translated: where texts are in brackets, no sentence is outside.

These are still only in English: the texts of `verl_npu/features` and the registry (`explain`, the reasons of `check
-v`, the notes of `lint --list-overrides`), `launch` once it has begun, whose lines are in the job's log, and the
script that `setup` prints.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from verl_npu import language
from verl_npu.cli import main, terminal

SENTENCE = re.compile(r"(?<![\w/.=-])[A-Za-z]{2,}(?: [a-z]{2,}){2,}")
TRAINING = """step:1 - actor/loss:0.5 - critic/score/mean:0.1 - timing_s/step:10 - actor/grad_norm:1.0
step:2 - actor/loss:nan - critic/score/mean:0.1 - timing_s/step:30 - actor/grad_norm:90.0
"""


class Brackets:
    """A language in which each text is in brackets."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return f"⟦{msgid1 if n == 1 else msgid2}⟧"


@pytest.fixture(autouse=True)
def brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "speaking", lambda chosen: language.speaking_by(Brackets()))


def outside(printed: str) -> str:
    """Return the output that is outside all brackets; lines of the user's log begin with a bar."""
    depth, left = 0, ""
    for char in "\n".join(line for line in printed.splitlines() if not line.startswith("    | ")):
        depth += (char == "⟦") - (char == "⟧")
        left += char if depth == 0 else ""
    return left


def sentences(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False, env={"COLUMNS": "100"})
    assert "⟦" in result.output
    return [line.strip() for line in outside(result.output).splitlines() if SENTENCE.search(line)]


@pytest.mark.parametrize("command", [(), *((name,) for name in sorted(main.commands))])
def test_help_is_translated(command: tuple[str, ...]) -> None:
    found = sentences(*command, "--help")
    # The calls that one can copy remain.
    assert [line for line in found if not line.startswith(("verl-npu ", "⟧ main "))] == []


@pytest.mark.parametrize(
    "call",
    [
        ("check",),
        ("env",),
        ("status", "/nowhere"),
        ("compare", "--merged", "/nowhere", "/nowhere"),
        ("plan", "/nowhere.sh"),
        ("rehearse", "/nowhere.sh"),
        ("explain", "nothing"),
        ("lint", "--overrides", "use_flash_att=True"),
        ("setup", "--pin", "v0.9.1", "--format", "docker-run", "--server", "a3", "--nodes", "3"),
        ("launch", "--dry-run", "--nodes", "2", "--head", "192.0.2.1", "--", "bash", "run.sh"),
        ("launch", "--dry-run", "--", "bash", "run.sh"),
        ("chekc",),
        ("check", "--foo"),
    ],
    ids=" ".join,
)
def test_what_a_command_says_is_translated(call: tuple[str, ...]) -> None:
    assert sentences(*call) == []


def test_the_doctor_is_translated() -> None:
    found = sentences("doctor")
    assert [line for line in found if not re.search(r"\b(pip|git|conda|export|source) ", line)] == []


def test_a_sentence_that_nobody_has_marked_is_found() -> None:
    assert SENTENCE.search(outside("⟦it is ⟦here⟧⟧ and this is not marked"))
    assert not SENTENCE.search(outside("⟦it is ⟦here⟧ and this is marked⟧ --log FILE"))


def test_json_stays_english(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(TRAINING)
    result = CliRunner().invoke(main, ["watch", "--once", "--json", str(log)], catch_exceptions=False)
    assert "⟦" not in result.output
    assert json.loads(result.output)["step"] == 2


def test_chinese_text_is_broken_by_the_columns_that_it_takes() -> None:
    lines = terminal.wrapped("这个环境中既没有 verl 也没有 torch，按顺序给出命令。", 20)
    assert all(terminal.cells(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == "这个环境中既没有verl也没有torch，按顺序给出命令。"
    assert not any(line[0] in "，。" for line in lines)


def test_a_rule_says_in_chinese_what_the_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    log = tmp_path / "train.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        "RuntimeError: NPU out of memory. NPUWorkspaceAllocator tried to allocate 2.00 GiB(NPU 0; 60.96 GiB total)\n"
    )
    result = CliRunner().invoke(main, ["doctor", "--log", str(log)], env={"LANG": "zh_CN.UTF-8", "COLUMNS": "100"})
    assert result.output.startswith("cause：原因已知\n")
    assert "含义：一个算子在 NPU 上申请不到 workspace 所需的显存（2.00 GiB）。" in result.output
    assert json.loads(
        CliRunner().invoke(main, ["doctor", "--log", str(log), "--json"], env={"LANG": "zh_CN.UTF-8"}).output
    )["root"]["means"].startswith("an operator found no memory")


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "用法："),
        ({"LANG": "C"}, "Usage:"),
        ({"LANG": "POSIX"}, "Usage:"),
        ({"LANG": "fr_FR.UTF-8"}, "Usage:"),
        ({"LANG": "C", "VERL_NPU_LANGUAGE": "zh_CN"}, "用法："),
        ({"LANG": "zh_CN.UTF-8", "VERL_NPU_LANGUAGE": "en"}, "Usage:"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "Usage:"),
    ],
    ids=str,
)
def test_the_locale_and_the_variable_choose_the_language(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], first: str
) -> None:
    monkeypatch.undo()
    assert CliRunner().invoke(main, ["doctor", "--help"], env=environment).output.startswith(first)
