"""CANN's package for moving caches of keys and values can be imported, and says that it moves nothing."""

from __future__ import annotations

import json

from virtual_ascend.testing.fixtures import Run

NAMES = ["LLMDataDist", "LLMConfig", "CacheDesc", "CacheKey", "BlocksCacheKey"]
PROGRAM = f"""
import json, torch, llm_datadist as d
said = []
for name in {NAMES}:
    try: getattr(d, name)(1, cluster=2)
    except NotImplementedError as error: said.append(str(error))
roles = [d.LLMRole.PROMPT.value, d.LLMRole.DECODER.value, d.DataType.DT_BF16, d.RegisterMemStatus.OK.name]
print(json.dumps([roles, said]))
"""


def test_it_can_be_imported_and_what_would_move_a_cache_says_that_it_is_not_there(python: Run) -> None:
    done = python(PROGRAM)
    assert done.stderr == ""
    roles, said = json.loads(done.stdout)
    assert roles == [1, 2, 27, "OK"]
    for name, text in zip(NAMES, said, strict=True):
        assert text.startswith(f"llm_datadist.{name} is not implemented by the virtual Ascend")
