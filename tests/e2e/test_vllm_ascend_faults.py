"""Faults that users reported of graphs and new weights, in the real vllm-ascend 0.11.0 that has them, on virtual NPUs:
it fails as reported, and is right with the mend of a later revision in it. `docs/engines.md` has the table.

It runs where VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does; the mend is taken from
vllm-ascend.git in VERL_NPU_UPSTREAMS.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.released import Revision

from .serving import Served, served

pytestmark = pytest.mark.e2e

MENDED = "bc2c300f62"
"""Of vllm-ascend#7473."""
MODE = "FULL_DECODE_ONLY"
"""Pieces do not hold attention."""


@pytest.fixture(scope="module", params=["0.11.0", MENDED])
def latent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, bool]]:
    """DeepSeek-V3 with MLA, and whether it has the mend."""
    folder, words = tmp_path_factory.mktemp("latent"), ["float32", MODE]
    if request.param == MENDED:
        history = Path(os.environ.get("VERL_NPU_UPSTREAMS", "")) / "vllm-ascend.git"
        if not history.is_dir():
            pytest.skip("set VERL_NPU_UPSTREAMS to a folder with vllm-ascend.git")
        words.append(str(folder / "mend.py"))
        (folder / "mend.py").write_text(method(Revision(history, MENDED)), encoding="utf-8")
    for engine in served("deepseek_v3", folder, *words):
        yield engine, request.param == MENDED


def method(revision: Revision) -> str:
    """Return the source of MLA's method that processes weights."""
    owners = [node for node in revision.tree("attention/mla_v1.py").body if isinstance(node, ast.ClassDef)]
    (owner,) = [node for node in owners if node.name == "AscendMLAImpl"]
    (found,) = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "process_weights_after_loading"]
    return "from __future__ import annotations\n" + ast.unparse(found)


def test_mla_multiplies_with_old_copies_in_a_graph_or_not(latent: tuple[Served, bool]) -> None:
    """#7473: weights are processed after each load, as verl does."""
    engine, mended = latent
    before = engine.tell("generate")
    assert before["tokens"] == engine.start["expected"]["a"]
    assert before["replays"] > 0
    assert engine.tell("reload", to="b")["error"] is None
    answered = engine.tell("generate")
    assert answered["replays"] > 0
    assert (answered["tokens"] == engine.start["expected"]["b"]) is mended
    engine.tell("compare")
    error = engine.tell("generate")["error"]
    assert (error is None) is mended
    assert mended or "its captured graphs to answer, after a weight sync, as the model does without them" in error


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served("qwen3_moe", tmp_path_factory.mktemp("experts"), "float32", MODE)


def test_experts_have_lost_their_loader_until_it_is_given_to_them_again(experts: Served) -> None:
    """#13012 and #13337; what verl does before each load is a mend of its own."""
    error = experts.tell("update", to="b")["error"]
    assert error == "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
    assert experts.tell("reload", to="b")["error"] is None
    answered = experts.tell("generate")
    assert answered["replays"] > 0
    assert answered["tokens"] == experts.start["expected"]["b"]
