"""Reported faults of graphs and new weights, in the real releases of vllm-ascend that have them, on virtual NPUs.

The releases fail as reported, and are right with the fix of a later revision. `docs/records/engine-faults.json` has
the table. It runs where VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does; the fix comes from
vllm-ascend.git in VERL_NPU_UPSTREAMS.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.released import Revision, repository

from .serving import PYTHONS, Served, answer, engine_of, served

pytestmark = pytest.mark.e2e

FIX = "bc2c300f62"
"""The revision that fixes vllm-ascend#7473."""
MODE = "FULL_DECODE_ONLY"
"""The graphs of pieces do not contain attention."""
LATER = "0.23.0"


def methods(revision: str, folder: Path, *found: tuple[str, str, str]) -> str:
    """Write methods of a revision, by file, class and name, into a file, and return its path."""
    made, there = folder / "fix.py", Revision(repository(), revision)
    sources = [method(there, *one) for one in found]
    made.write_text("\n\n".join(["from __future__ import annotations", *sources]), encoding="utf-8")
    return str(made)


def method(revision: Revision, path: str, owner: str, name: str) -> str:
    """Return a method's source."""
    (there,) = [node for node in revision.tree(path).body if isinstance(node, ast.ClassDef) and node.name == owner]
    (found,) = [node for node in there.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.unparse(found)


@pytest.fixture(scope="module", params=["0.11.0", FIX])
def latent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, bool]]:
    """Yield DeepSeek-V3 with MLA, and whether it has the fix."""
    folder, words = tmp_path_factory.mktemp("latent"), ["float32", MODE]
    if request.param == FIX:
        mla = ("attention/mla_v1.py", "AscendMLAImpl", "process_weights_after_loading")
        words.append(methods(FIX, folder, mla))
    for engine in served("deepseek_v3", folder, *words):
        yield engine, request.param == FIX


def test_mla_multiplies_with_old_copies_in_a_graph_or_not(latent: tuple[Served, bool]) -> None:
    """#7473: weights are processed after each load, as verl does."""
    engine, fixed = latent
    before = engine.tell("generate")
    assert before["tokens"] == engine.start["expected"]["a"]
    assert before["replays"] > 0
    assert engine.tell("reload", to="b")["error"] is None
    answered = engine.tell("generate")
    assert answered["replays"] > 0
    assert (answered["tokens"] == engine.start["expected"]["b"]) is fixed
    engine.tell("compare")
    error = engine.tell("generate")["error"]
    assert (error is None) is fixed
    assert fixed or "after a weight sync, the outputs of the engine's captured graphs" in error


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served("qwen3_moe", tmp_path_factory.mktemp("experts"), "float32", MODE)


def test_experts_have_lost_their_loader_until_it_is_given_to_them_again(experts: Served) -> None:
    """#13012 and #13337; verl's own step before each load fixes it, too."""
    error = experts.tell("update", to="b")["error"]
    assert error == "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
    assert experts.tell("reload", to="b")["error"] is None
    answered = experts.tell("generate")
    assert answered["replays"] > 0
    assert answered["tokens"] == experts.start["expected"]["b"]


AWAKE = Path(__file__).with_name("vllm_ascend_awake.py")
WAKE_UP = ("worker/worker.py", "NPUWorker", "wake_up")
PROCESS = ("ops/fused_moe/routed_experts.py", "AscendUnquantizedFusedMoEMethod", "process_weights_after_loading")


@pytest.fixture(scope="module")
def later() -> str:
    """Return the Python of an environment with the later release."""
    for path in PYTHONS:
        if engine_of(path).vllm_ascend == LATER:
            return path
    pytest.skip(f"set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend {LATER}")


def test_experts_that_slept_and_kept_their_weights_fit_or_not(later: str, tmp_path: Path) -> None:
    """#11548 and #12226."""
    said = answer(AWAKE, str(tmp_path / "model"), "keep", folder=tmp_path, by=later)
    assert said["awake"] == said["kept"]
    assert said["after sleep"].startswith("RuntimeError: a and b must have same reduction dim")
    fix = methods("032b3f4a04", tmp_path, WAKE_UP)
    said = answer(AWAKE, str(tmp_path / "model"), "keep", fix, folder=tmp_path, by=later)
    assert said["after sleep"] == said["kept"]


def test_experts_that_slept_can_be_loaded_or_not(later: str, tmp_path: Path) -> None:
    """#13337."""
    said = answer(AWAKE, str(tmp_path / "model"), "load", folder=tmp_path, by=later)
    assert said["awake"] == said["kept"]
    assert said["after sleep"] == "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
    fix = methods("bdab23475a", tmp_path, WAKE_UP, PROCESS)
    said = answer(AWAKE, str(tmp_path / "model"), "load", fix, folder=tmp_path, by=later)
    assert said["after sleep"] == said["loaded"]
    assert said["loaded"] != said["kept"]
