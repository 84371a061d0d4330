"""What a text takes grows with its length, whatever stands in it."""

from __future__ import annotations

import time

import pytest
from verl_npu_workbench.secrecy.redaction import Redaction

LENGTH, MOST = 100_000, 10.0


@pytest.mark.parametrize(
    "part", ["password ", "token=a,", "https://x", "://", "--password ", 'File "x", line 1\n', "mysql "]
)
def test_a_text_is_masked_in_seconds(part: str) -> None:
    text = part * (LENGTH // len(part))
    began = time.process_time()
    Redaction(environ={"MY_TOKEN": "abcdefgh1234"})(text)
    assert time.process_time() - began < MOST
