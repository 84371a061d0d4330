"""Each message of ours is one line without terminal commands, whoever wrote the text that it quotes."""

from __future__ import annotations

import io
import logging

import pytest

from verl_npu import reporting

HOSTILE = "a\x1b[2Jb\nc\u202ed\u200be\x9bf\rg\x00"
ESCAPED = "a\\x1b[2Jb\\nc\\u202ed\\u200be\\x9bf\\rg\\x00"


def test_a_line_on_stderr_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    reporting.warn(HOSTILE)
    assert capsys.readouterr().err == f"verl-npu: {ESCAPED}\n"


def test_a_line_for_the_users_own_handler_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, stream = logging.getLogger(reporting.LOGGER), io.StringIO()
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(stream)])
    reporting.warn(HOSTILE)
    assert stream.getvalue() == f"{ESCAPED}\n"


def test_a_line_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    reporting.report("x" * (1 << 20))
    assert len(capsys.readouterr().err) < 20_000


def test_chinese_is_not_written_out() -> None:
    assert reporting.clean("结果 ✓ naïve") == "结果 ✓ naïve"
