"""What a comparison asks of the engine, and how often."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.layers import EXCHANGED, running, vllm
from verl_npu_workbench.layers.recording import Recorder
from verl_npu_workbench.layers.running import compare_layers

from verl_npu.errors import RolloutError
from verl_npu.registry.source.tree import SourceTree

from .models import make

ROLLOUT = "actor_rollout_ref.rollout"
GOOD = {"first": None, "cause": None, "not_shown": []}
BAD = {**GOOD, "first": {"side": "engine"}}
EXPLAINED = {**BAD, "cause": {"reason": "rotary base", "said": ""}}


class Programs:
    """The programs of a comparison, which write results and compute nothing."""

    def __init__(self, results: Sequence[dict[str, Any]], *broken: str, npus: int = 1) -> None:
        self.results = list(results)
        self.npus = npus
        self.broken = broken
        self.engines: list[tuple[str, dict[str, Any]]] = []
        self.prompts: list[list[int]] = []

    def __call__(self, folder: Path, variables: object, what: str, module: str, *words: str) -> None:
        if module == "vllm":
            name = EXCHANGED[int(folder.name)] if folder.name.isdecimal() else ""
            if name in self.broken:
                raise RolloutError(subject="the engine", expected="a recording", found="nothing", fix="none")
            asked = json.loads((folder / "ask.json").read_text())
            self.prompts = asked["prompts"]
            self.engines.append((name, asked["engine"]))
        elif words == ("prepare",):
            (folder / "ask.json").write_text(json.dumps({"npus": self.npus, "weights": {}}))
        else:
            (folder / "comparison.pickle").write_bytes(pickle.dumps(self.results.pop(0)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(running, "find_spec", lambda name: name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 500}))
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    return tmp_path


def compared(path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, **rollout: object) -> Any:
    monkeypatch.setattr(running, "_run", programs)
    values = {"actor_rollout_ref.model.path": str(path), **{f"{ROLLOUT}.{key}": each for key, each in rollout.items()}}
    return compare_layers(Settings(values), path)


def test_prompts_have_no_token_of_a_picture_and_share_a_prefix(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "qwen2_5_vl", "text_config": {"vocab_size": 14}, "image_token_id": 6, "eos_token_id": [7]}
    (path / "config.json").write_text(json.dumps(config))
    programs = Programs([GOOD])
    compared(path, programs, monkeypatch)
    assert {token for prompt in programs.prompts for token in prompt} == {5, 7, 8}
    _, one, _, other = programs.prompts
    assert one[:130] == other[:130]
    assert one[130:140] != other[130:140]


def test_an_error_without_a_cause_is_looked_for_with_other_settings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([BAD, EXPLAINED])
    assert compared(path, programs, monkeypatch)["cause"]
    names = [name for name, _ in programs.engines]
    assert names[1:] == ["graphs", "chunked prefill", "prefix cache"]
    first, graphs, whole, uncached = (engine for _, engine in programs.engines)
    assert (first["enforce_eager"], graphs["enforce_eager"]) == (True, False)
    assert (first["max_num_batched_tokens"], whole["max_num_batched_tokens"]) == (64, 2048)
    assert (first["enable_prefix_caching"], uncached["enable_prefix_caching"]) == (True, False)
    assert uncached["max_num_batched_tokens"] == 64


@pytest.mark.parametrize("result", [GOOD, EXPLAINED, {**BAD, "first": {"side": "trainer"}}])
def test_no_other_setting_is_tried_for_another_result(
    result: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([result])
    compared(path, programs, monkeypatch, enforce_eager=True)
    assert len(programs.engines) == 1


def test_settings_that_the_script_switches_off_are_not_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs([BAD, BAD])
    compared(
        path, programs, monkeypatch, enforce_eager=True, enable_prefix_caching=False, enable_chunked_prefill=False
    )
    ((_, engine),) = programs.engines
    assert engine["max_num_batched_tokens"] == 2048


def test_a_model_with_linear_attention_has_no_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "qwen3_5", "text_config": {"vocab_size": 50, "layer_types": ["linear_attention"]}}
    (path / "config.json").write_text(json.dumps(config))
    programs = Programs([BAD, BAD])
    compared(path, programs, monkeypatch, enforce_eager=True)
    first, uncached = (engine for _, engine in programs.engines)
    assert (first["enable_chunked_prefill"], first["max_num_batched_tokens"]) == (True, 2048)
    assert not uncached["enable_prefix_caching"]


def test_a_model_with_pictures_takes_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With none, vllm-ascend 0.11.0's runner lacks is_mm_embed, which it reads for each such model."""
    config = {"model_type": "qwen2_5_vl", "text_config": {"vocab_size": 50}, "vision_config": {}}
    (path / "config.json").write_text(json.dumps(config))
    programs = Programs([GOOD])
    compared(path, programs, monkeypatch, enforce_eager=True)
    ((_, engine),) = programs.engines
    assert engine["limit_mm_per_prompt"]["image"] == 1


def test_the_engine_has_the_settings_of_the_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, key = Programs([GOOD]), "engine_kwargs.vllm"
    more = {f"{key}.compilation_config.cudagraph_mode": "PIECEWISE", f"{key}.additional_config.a.b": 1}
    compared(path, programs, monkeypatch, expert_parallel_size=2, **more)
    (_, eager), (_, graphs) = programs.engines
    assert eager["enable_expert_parallel"]
    assert eager["additional_config"] == {"a": {"b": 1}}
    assert eager["num_gpu_blocks_override"] == 64
    assert "compilation_config" not in eager
    assert graphs["compilation_config"] == {"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4]}


def test_another_setting_with_which_the_engine_fails_is_not_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compared(path, Programs([BAD, EXPLAINED], "graphs", "chunked prefill"), monkeypatch)
    assert made["cause"] == EXPLAINED["cause"]
    assert [each.partition(": expected")[0] for each in made["not_shown"][1:]] == [
        "the engine with another setting of graphs: the engine",
        "the engine with another setting of chunked prefill: the engine",
    ]


def test_settings_that_are_not_computed_are_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs([GOOD], npus=2)
    made = compared(path, programs, monkeypatch, quantization="fp8", tensor_model_parallel_size=4)
    assert made["not_shown"][1:] == [
        "the engine's tensor parallelism 4: computed with 1, because this machine has 2 NPUs",
        "the engine's quantization fp8: computed without it",
    ]


@pytest.mark.parametrize(
    ("strategy", "key", "value", "dtype"),
    [
        ("fsdp", "fsdp_config.mixed_precision.param_dtype", "fp32", "float32"),
        ("fsdp2", "fsdp_config.dtype", "float16", "float16"),
        ("megatron", "megatron.dtype", "float16", "float16"),
        ("fsdp", "megatron.dtype", "float16", "float32"),
    ],
)
def test_the_trainer_has_the_dtype_of_the_script_or_of_the_engine(
    strategy: str, key: str, value: str, dtype: str
) -> None:
    actor = "actor_rollout_ref.actor"
    settings = Settings({f"{actor}.strategy": strategy, f"{actor}.{key}": value, f"{ROLLOUT}.dtype": "float32"})
    assert running._trainer(settings, 1, [])["dtype"] == dtype


@pytest.mark.parametrize(("legacy", "dtype"), [(True, "float16"), (False, "bfloat16")])
def test_a_dtype_that_verl_does_not_read_is_not_the_trainers(
    legacy: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine/fsdp/transformer_impl.py", *(["fsdp_workers.py"] if legacy else [])):
        (file := tmp_path / "verl" / "workers" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("fsdp_config.dtype" if legacy else "")
    found = SourceTree.at(tmp_path, ("verl",))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: found)
    settings = Settings({"actor_rollout_ref.actor.fsdp_config.dtype": "float16", f"{ROLLOUT}.dtype": "float32"})
    assert running._trainer(settings, 1, [])["dtype"] == dtype


def test_the_answers_are_written_after_the_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def __init__(self, **given: object) -> None:
            """Start."""

        def collective_rpc(self, method: str, args: object = ()) -> None:
            if method == "save_layers":
                raise OSError("the disk is full")

        def generate(self, *given: object, **named: object) -> list[object]:
            return []

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=dict))
    (tmp_path / "ask.json").write_text(json.dumps({"engine": {}, "sampling": {}, "prompts": []}))
    with pytest.raises(OSError, match="the disk is full"):
        vllm.main(tmp_path)
    assert not (tmp_path / "answers.json").exists()


def test_tokens_that_are_embedded_before_the_model_is_called_are_recorded() -> None:
    recorder = Recorder()
    model = SimpleNamespace(embed_input_ids=lambda ids: recorder.add("embed_tokens:out", ids[:, None].float()))
    batch = SimpleNamespace(req_ids=["0-a"], num_computed_tokens_cpu=[0])
    watched = vllm._Watched(SimpleNamespace(model=model, input_batch=batch), recorder, {"0-a": 2})
    watched.embed_input_ids(torch.tensor([5, 6]))
    ((places, rows),) = recorder.taken["embed_tokens:out"]
    assert (places, rows.tolist()) == ([(0, 0), (0, 1)], [[5], [6]])


@pytest.mark.parametrize("name", ["linear_attn.out_proj:in", "self_attn.o_proj:in", "self_attn.q_norm:out"])
def test_the_parts_of_all_ranks_are_joined_in_their_order(name: str, tmp_path: Path) -> None:
    name = f"layers.0.{name}"
    for rank in range(11):
        torch.save({"values": {name: torch.tensor([[rank]])}, "weights": {}}, tmp_path / f"rank-{rank}.pt")
    (tmp_path / "answers.json").write_text(json.dumps({"tokens": [[1, 2]], "prompts": [1], "logprobs": [0.0]}))
    assert vllm.read(tmp_path, torch.float32, make("qwen2")).values[name].tolist() == [[*range(11)]]


def test_a_model_that_does_not_fit_into_the_host_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 bytes are 50 numbers of two bytes, and the host holds them in 8, 4, and 4 bytes each."""
    monkeypatch.setattr(running, "available_memory", lambda: 800)
    compared(path, Programs([GOOD]), monkeypatch, enforce_eager=True, dtype="float32")
    monkeypatch.setattr(running, "available_memory", lambda: 799)
    with pytest.raises(RolloutError, match="GiB of free memory on this host"):
        compared(path, Programs([GOOD]), monkeypatch, dtype="float32")
