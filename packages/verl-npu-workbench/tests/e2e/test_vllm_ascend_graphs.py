"""The real vllm-ascend in graph mode on virtual NPUs.

It answers as transformers does, by replayed graphs, before and after it slept and received new weights. Weights that a
graph no longer sees are named, and an answer with them is distinguished from the model's. It runs where
VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.version import Version
from verl_npu_workbench.simulation.graphs import TRIED

from .serving import RELEASE, Served, answer, ended, engine_of, served

pytestmark = pytest.mark.e2e

MODES = ("PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
TOKENS = Path(__file__).with_name("vllm_ascend_tokens.py")
SPOILT = ("qwen3_moe_ep", 2, "PIECEWISE")


def by_name() -> str:
    """Return the PYTHONPATH by which its workers import the program by name."""
    return os.pathsep.join((str(TOKENS.parent), str(TOKENS.parents[2])))


def offer(python: str, mode: str) -> str:
    """Return the release of vllm-ascend, if it captures graphs in that mode here; skip otherwise."""
    release = engine_of(python).vllm_ascend
    if mode not in TRIED.get(release, ()):
        pytest.skip(f"{mode} of vllm-ascend {release} is refused on virtual NPUs")
    return release


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "qwen3_moe_ep", "deepseek_v3"])
def test_each_model_answers_as_transformers_do_on_all_its_npus(
    python: str, kind: str, parallel: int, mode: str, tmp_path: Path
) -> None:
    """Awake, after sleep, and with other weights and the first ones again after sleep of both levels."""
    release = offer(python, mode)
    if release == RELEASE and (kind, parallel, mode) == SPOILT:
        pytest.skip("its answer is no number, see below")
    words = (kind, str(parallel), str(tmp_path / "model"), mode)
    said = answer(TOKENS, *words, folder=tmp_path, by=python, PYTHONPATH=by_name())
    assert said["awake"] == said["expected"]
    # From 0.13 on experts wake up in the layout of a checkpoint, and wait for new weights.
    waits = Version(release) >= Version("0.13.0") and kind not in ("qwen2", "qwen3")
    assert said["after sleep"] == (None if waits else said["expected"])
    assert len(said["handed over"]) == 2
    for after in said["handed over"]:
        assert after["proofs"] == ["the engine holds them bit for bit"] * parallel
        assert after["tokens"] == after["expected"]
    assert said["handed over"][0]["tokens"] != said["expected"]


def test_an_answer_that_is_no_number_ends_the_job(tmp_path: Path) -> None:
    """vllm-ascend#2877 and #10579: token_combine multiplies row 1 by 0 for an expert of another rank. After sleep a
    row that fills the batch up is NaN, because it attends to block 0 of the cache, which nothing writes."""
    kind, parallel, mode = SPOILT
    done = ended(TOKENS, kind, str(parallel), str(tmp_path / "model"), mode, folder=tmp_path, PYTHONPATH=by_name())
    assert done.returncode != 0
    assert (
        "the outputs of 3 of 3 tokens are NaN or infinity, with and without captured graphs, in a batch that is "
        "padded to 4 tokens; do not use this rollout for training; check whether the trainer's loss and gradients are "
        "finite: if they are, the padding of a batch corrupts the answers" in done.stdout
    )


@pytest.mark.parametrize("mode", MODES)
def test_in_bfloat16_it_answers_as_it_does_without_graphs(python: str, mode: str, tmp_path: Path) -> None:
    """vllm-ascend has more patterns to fuse in bfloat16."""
    offer(python, mode)
    found = []
    for words in (("bfloat16", mode), ("bfloat16",)):
        with contextmanager(served)("qwen2", tmp_path, *words, by=python) as engine:
            found.append(engine.tell("generate"))
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["replays"] > found[1]["replays"] == 0


@pytest.fixture(scope="module", params=[(kind, mode) for kind in ("qwen2", "qwen3") for mode in MODES], ids="-".join)
def engine(python: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield an engine that has captured graphs; a test leaves it awake, with the weights `a`."""
    kind, mode = request.param
    offer(python, mode)
    yield from served(kind, tmp_path_factory.mktemp(kind), "float32", mode, by=python)


def answers(engine: Served, by: str) -> None:
    """Check that it answers as transformers with the weights `by`, and replays graphs for it."""
    found = engine.tell("generate")
    assert found["error"] is None
    assert found["numbers"]
    assert found["tokens"] == engine.start["expected"][by]
    assert found["replays"] > 0


def test_it_answers_as_transformers_do(engine: Served) -> None:
    answers(engine, "a")


@pytest.mark.parametrize("level", [1, 2])
def test_it_answers_as_transformers_after_sleep_and_a_new_hand_over(engine: Served, level: int) -> None:
    for weights in ("b", "a"):
        assert engine.tell("sleep", level=level)["error"] is None
        assert engine.tell("wake", tags=["weights"])["error"] is None
        said = engine.tell("prove", to=weights)
        assert said["error"] is None
        assert said["proof"] == "the engine holds them bit for bit"
        assert engine.tell("wake", tags=["kv_cache"])["error"] is None
        answers(engine, weights)
    assert "differs from eager mode by" in engine.log.read_text()


def test_it_answers_by_the_same_weights_if_it_slept_and_kept_them(engine: Served) -> None:
    assert engine.tell("sleep", level=1)["error"] is None
    assert engine.tell("wake", tags=None)["error"] is None
    answers(engine, "a")


def test_a_weight_that_was_replaced_is_named(engine: Served) -> None:
    """The last test of an engine, which cannot be repaired."""
    name = "model.layers.1.mlp.down_proj.weight"
    assert engine.tell("replace", name=name)["error"] is None
    said = engine.tell("prove", to="b")["error"]
    assert f"{name}: the tensor moved in memory after the engine captured its graphs" in said
    found = engine.tell("generate")
    assert found["tokens"] != engine.start["expected"]["b"]
    assert engine.tell("compare", to="a")["error"] is None
    said = engine.tell("generate")["error"]
    assert "after a weight sync, the outputs of the engine's captured graphs" in said
