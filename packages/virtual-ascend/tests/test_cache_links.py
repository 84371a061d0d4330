"""CANN's package for moving caches of keys and values: it can be imported, and says that it moves nothing."""

from __future__ import annotations

import pytest
from virtual_ascend.testing.fixtures import Run


def test_what_offers_it_can_be_imported_and_choose_a_role(python: Run) -> None:
    done = python(
        "import torch, llm_datadist as d; "
        "print(d.LLMRole.PROMPT.value, d.LLMRole.DECODER.value, d.DataType.DT_BF16, d.RegisterMemStatus.OK.name)"
    )
    assert (done.stdout, done.stderr) == ("1 2 27 OK\n", "")


@pytest.mark.parametrize("name", ["LLMDataDist", "LLMConfig", "CacheDesc", "CacheKey", "BlocksCacheKey"])
def test_what_would_move_a_cache_says_that_it_is_not_there(python: Run, name: str) -> None:
    done = python(f"import torch, llm_datadist; llm_datadist.{name}(1, cluster=2)")
    assert f"NotImplementedError: llm_datadist.{name} is not implemented by the virtual Ascend" in done.stderr
