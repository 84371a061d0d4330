"""`check MODEL`: the code that runs each operator of a model of the installed transformers, built without weights."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from maintain import models_page

from verl_npu.cli import model as models
from verl_npu.cli.model import Part, Way, read
from verl_npu.features import load
from verl_npu.features.attention import UTILS
from verl_npu.features.fused_ops import modeling
from verl_npu.features.fused_ops.experts import VISION_BLOCK
from verl_npu.registry.judge.natives import Native
from verl_npu.registry.judge.verdict import Verdict
from verl_npu.registry.source.reader import Step
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

from .conftest import Run

check = importlib.import_module("verl_npu.cli.check")  # the package has the command under this name
pytestmark = pytest.mark.upstream
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64}
FLASH = Part("", "", Way.PATCHED, "attention.ours")


def parts(folder: Path, family: str, covers: Mapping[str, Part] | None = None, **more: object) -> dict[str, Part]:
    """Return the parts of a small model, by operator and class."""
    (folder / "config.json").write_text(json.dumps({"model_type": family, **SMALL, **more}))
    found = read(str(folder), covers or {})
    return {part.place.partition(":")[2] or part.operator: part for part in found.parts}


def test_a_target_of_a_patch_is_patched_and_the_rest_falls_back_silently(tmp_path: Path) -> None:
    patch = Part("", "", Way.PATCHED, "fused_ops.ours")
    covers = {f"{modeling('qwen3')}:Qwen3RMSNorm.forward": patch, f"{modeling('qwen3')}:apply_rotary_pos_emb": patch}
    found = parts(tmp_path, "qwen3", covers)
    assert {name: str(found[name].way) for name in ("Qwen3RMSNorm", "apply_rotary_pos_emb", "Qwen3MLP")} == {
        "Qwen3RMSNorm": "patched",
        "apply_rotary_pos_emb": "patched",
        "Qwen3MLP": "fall-back",
    }
    assert found["Qwen3MLP"].silent
    assert not found["Qwen3RMSNorm"].silent


def test_a_patch_of_a_function_below_flash_attention_counts_and_transformers_own_npu_code_without_it(
    tmp_path: Path,
) -> None:
    covers = {f"{UTILS}:_flash_attention_forward": FLASH}
    assert parts(tmp_path, "llama", covers)["LlamaAttention"].by == "attention.ours"
    native = parts(tmp_path, "llama")["LlamaAttention"]
    assert (native.way, native.by, native.silent) == (Way.NATIVE, "transformers", False)


def test_a_class_of_flash_attention_is_found_without_its_package(tmp_path: Path) -> None:
    covers = {f"{UTILS}:_flash_attention_forward": FLASH}
    assert parts(tmp_path, "falcon", covers)["FalconAttention"].by == "attention.ours"


def test_a_drifted_patch_is_said(tmp_path: Path) -> None:
    drifted = Part("", "", Way.DRIFTED, "fused_ops.ours", "another signature")
    found = parts(tmp_path, "qwen3", {f"{modeling('qwen3')}:Qwen3MLP.forward": drifted})["Qwen3MLP"]
    assert (found.way, found.by, found.reason) == (Way.DRIFTED, "fused_ops.ours", "another signature")


def test_a_module_of_torch_is_native(tmp_path: Path) -> None:
    found = parts(tmp_path, "gpt_neox", intermediate_size=64)["LayerNorm"]
    assert (found.way, found.by) == (Way.NATIVE, "torch")


def test_a_fall_back_that_transformers_logs_is_not_silent(tmp_path: Path) -> None:
    logged, silent = parts(tmp_path, "mamba")["MambaMixer"], parts(tmp_path, "mamba")["MambaRMSNorm"]
    assert (logged.operator, logged.way, logged.silent) == ("linear attention", Way.FALLBACK, False)
    assert silent.silent


@pytest.mark.parametrize("covered", ["Qwen3MoeSparseMoeBlock.forward", "Qwen3MoeSparseMoeBlock"])
def test_experts_are_covered_by_a_patch_of_their_block(tmp_path: Path, covered: str) -> None:
    native = Part("", "", Way.NATIVE, "verl.models.transformers.npu_patch")
    more = {"moe_intermediate_size": 8, "num_experts": 512, "num_experts_per_tok": 2}
    found = parts(tmp_path, "qwen3_moe", {f"{modeling('qwen3_moe')}:{covered}": native}, **more)
    assert {name: part.way for name, part in found.items() if part.operator == "experts"} == {
        "Qwen3MoeSparseMoeBlock": Way.NATIVE
    }


def test_experts_in_a_module_of_their_own_are_covered_by_its_patch(tmp_path: Path) -> None:
    covers = {f"{modeling('gpt_oss')}:GptOssExperts.forward": Part("", "", Way.PATCHED, "fused_ops.ours")}
    found = parts(tmp_path, "gpt_oss", covers, num_local_experts=4, head_dim=16, num_key_value_heads=4)
    assert found["GptOssMLP"].by == "fused_ops.ours"


def test_only_a_few_of_many_experts_are_built() -> None:
    config = transformers.Qwen3MoeConfig(**SMALL, num_experts=512, num_key_value_heads=4, head_dim=16)
    assert sum(1 for _module in models._built(config).modules()) < 200


@pytest.mark.parametrize(
    ("missing", "way", "by"), [("", Way.PATCHED, "linear_attention.ours"), ("fla is not installed", Way.FALLBACK, "")]
)
def test_linear_attention_without_its_package_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, way: Way, by: str
) -> None:
    monkeypatch.setattr(models, "missing_kernels", lambda: missing)
    target = f"{modeling('qwen3_next')}:Qwen3NextGatedDeltaNet"
    covers = {f"{target}.__init__": Part("", "", Way.PATCHED, "linear_attention.ours")}
    sizes = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
    heads = {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
    found = parts(tmp_path, "qwen3_next", covers, num_experts=4, head_dim=16, num_key_value_heads=4, **sizes, **heads)
    part = found["Qwen3NextGatedDeltaNet"]
    assert (part.way, part.by, part.reason, part.silent) == (way, by, missing, False)


def test_linear_attention_of_another_package_is_native() -> None:
    def chunk() -> None: ...

    chunk.__module__ = "fla.ops.gated_delta_rule"

    module = type("GatedDeltaNet", (torch.nn.Module,), {"forward": lambda self: None})()
    module.chunk = chunk
    found = models._linear(module, {})
    assert (found.way, found.by) == (Way.NATIVE, "fla.ops.gated_delta_rule")


def test_a_patch_of_upstream_that_ours_undoes_covers_nothing() -> None:
    features, kept = load(), "fused_ops.keep_transformers_expert_block_in_qwen3_vl_moe"
    step = Step(
        place=VISION_BLOCK.replace(":", "."), value="Block", is_module=False, call="", line=1, conditions=(), blocks=()
    )
    native = Native(VISION_BLOCK, "verl.models.transformers.npu_patch", step, State.NATIVE, "")

    def covered(state: State) -> bool:
        states = {patch.id: State.ABSENT for feature in features for patch in feature} | {kept: state}
        verdicts = {id: Verdict(one, "") for id, one in states.items()}
        return VISION_BLOCK in check._covers(check._Result(features, {}, verdicts, [native], None, [], [], [], [], []))

    assert covered(State.ABSENT)
    assert not covered(State.PENDING)


def test_a_setting_that_flash_attention_ignores_ends_the_job_or_is_ignored_without_the_patch(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_key_value_heads": 4, "intermediate_size": 64}
    with_patch = parts(tmp_path, "gemma2", {f"{UTILS}:_flash_attention_forward": FLASH}, **sizes)["Gemma2Attention"]
    assert with_patch.way is Way.REFUSED
    assert "attn_logit_softcapping=50.0" in with_patch.reason
    without = parts(tmp_path, "gemma2", **sizes)["Gemma2Attention"]
    assert (without.way, without.silent) == (Way.NATIVE, True)


def test_a_window_is_a_remark_because_only_longer_sequences_end_the_job(tmp_path: Path) -> None:
    found = parts(tmp_path, "mistral", {f"{UTILS}:_flash_attention_forward": FLASH}, sliding_window=4096)
    assert found["MistralAttention"].way is Way.PATCHED
    assert "sliding_window=4096" in found["MistralAttention"].reason


def test_a_model_without_flash_attention_is_refused(tmp_path: Path) -> None:
    found = parts(tmp_path, "bloom")["BloomAttention"]
    assert (found.way, found.by) == (Way.REFUSED, "transformers")
    assert "BloomModel" in found.reason


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the registries of a vLLM and a vllm-ascend."""
    for path, text in {
        "vllm/model_executor/models/registry.py": '_TEXT = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM"),'
        '"SmolLM3ForCausalLM": ("transformers", "TransformersForCausalLM")}\n_GONE = {"OldForCausalLM": "0.9.2"}\n',
        "vllm_ascend/models/__init__.py": "from vllm import ModelRegistry\ndef register_model():\n"
        '    ModelRegistry.register_model("NewForCausalLM", "vllm_ascend.models.new:AscendNew")\n',
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(text)
    monkeypatch.setattr(SourceTree, "installed", classmethod(lambda cls, names: SourceTree.at(tmp_path, names)))
    return tmp_path


@pytest.mark.parametrize(
    ("architecture", "way", "place"),
    [
        ("LlamaForCausalLM", Way.NATIVE, "vllm.model_executor.models.llama:LlamaForCausalLM"),
        ("NewForCausalLM", Way.NATIVE, "vllm_ascend.models.new:AscendNew"),
        ("SmolLM3ForCausalLM", Way.FALLBACK, "TransformersForCausalLM"),
        ("UnknownForCausalLM", Way.FALLBACK, ""),
        ("OldForCausalLM", Way.REFUSED, ""),
    ],
)
def test_the_class_of_the_engine_is_read_from_its_registry(
    architecture: str, way: Way, place: str, engines: Path
) -> None:
    found = models._engine(architecture)
    assert (found.way, found.place) == (way, place)


def test_an_engine_that_is_not_installed_is_said(nothing_installed: None) -> None:
    assert models._engine("LlamaForCausalLM").way is Way.ABSENT


def test_the_command_tells_our_patches_and_ends_well(run: Run, tree: Path) -> None:
    status, output = run("check", "qwen3", "--source", str(tree), "--json")
    by = {part["place"].partition(":")[2]: part["by"] for part in json.loads(output)["parts"]}
    assert status == 0
    assert by["Qwen3RMSNorm"] == "fused_ops.fuse_norm_in_qwen3_Qwen3RMSNorm"
    assert by["Qwen3Attention"] == "attention.compute_packing_once_and_check_settings"


def test_the_command_names_what_nobody_would_say(run: Run, tree: Path) -> None:
    status, output = run("check", "llama", "--source", str(tree))
    assert status == 0
    assert "A job's log says nothing about" in output
    assert "LlamaMLP" in " ".join(output.split()).partition("note: ")[2]


def test_a_refusal_is_status_1(run: Run, tree: Path) -> None:
    status, output = run("check", "bloom", "--source", str(tree))
    assert status == 1
    assert "does not support flash_attention_2" in " ".join(output.split())


def test_a_patch_that_is_left_out_with_its_feature_is_status_1(run: Run, tree: Path) -> None:
    # The feature patches verl, too, and one drifted patch takes all of them with it.
    file = tree / "verl/utils/torch_functional.py"
    text = file.read_text()
    assert "def log_probs_from_logits_response_rmpad(" in text
    file.write_text(text.replace("def log_probs_from_logits_response_rmpad(", "def renamed("))
    status, output = run("check", "llama", "--source", str(tree), "--json")
    found = {part["operator"]: part["way"] for part in json.loads(output)["parts"]}
    assert (status, found["attention"]) == (1, "drifted")


@pytest.mark.parametrize("given", ["qwen-3", "folder", "file"])
def test_an_unknown_family_is_one_line_with_near_names(run: Run, tree: Path, tmp_path: Path, given: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen-3"}')
    name = {"folder": str(tmp_path), "file": str(tmp_path / "config.json")}.get(given, given)
    status, output = run("check", name, "--source", str(tree))
    assert status == 2
    assert "found 'qwen-3'; did you mean qwen3" in " ".join(output.split())


def test_a_configuration_that_cannot_be_built_is_one_line(run: Run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 0}')
    status, output = run("check", str(tmp_path), "--source", str(tree))
    assert status == 2
    assert "expected a model that transformers" in output


def test_the_table_of_families_matches_its_record() -> None:
    content = json.loads(models_page.RECORD.read_text())
    assert len(content["families"]) >= 40
    for language, page in models_page.PAGES.items():
        assert models_page.render(content, language) in page.read_text(), "run python scripts/maintain/models_page.py"


def test_the_record_is_what_the_command_says_in_its_environment() -> None:
    content = json.loads(models_page.RECORD.read_text())
    try:
        here = {name: metadata.version(name).partition("+")[0] for name in models_page.STACK}
    except metadata.PackageNotFoundError:
        here = {}
    if here != content["stack"]:
        pytest.skip("the environment has another stack")
    family = "qwen3_vl_moe"
    assert models_page.cells(family) == content["families"][family]
