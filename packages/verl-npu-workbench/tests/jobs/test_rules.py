from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.jobs.rules import RULES, findings
from verl_npu_workbench.jobs.script import Script
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer

from verl_npu.registry.source.tree import SourceTree

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
RIGHT: Mapping[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "data.train_files": __file__,
    "trainer.device": "npu",
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 2,
    "actor_rollout_ref.model.use_fused_kernels": False,
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.ulysses_sequence_parallel_size": 4,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.tensor_model_parallel_size": 4,
    f"{ROLLOUT}.free_cache_engine": True,
}
MEGATRON = {
    f"{ACTOR}.strategy": "megatron",
    f"{ACTOR}.megatron.tensor_model_parallel_size": 4,
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    f"{ACTOR}.megatron.context_parallel_size": 1,
}
REWARD_MODEL = {
    "reward.reward_model.enable": True,
    "reward.reward_model.enable_resource_pool": True,
    "reward.reward_model.rollout.name": "vllm",
    "reward.reward_model.rollout.free_cache_engine": True,
}
FUSED = {
    "actor_rollout_ref.model.use_fused_kernels": True,
    "actor_rollout_ref.model.fused_kernel_options.impl_backend": "triton",
}


def script(
    settings: Mapping[str, object] | None = None,
    overrides: tuple[str, ...] = ("trainer.device=npu", "data.train_batch_size=64"),
    exports: Mapping[str, str] | None = None,
    text: str = "",
    runtime: Mapping[str, str] | None = None,
    ranks: int = 0,
    pin: str = "v0.6.1",
    nodes: int = 1,
    counted: bool = True,
    module: str = "verl.trainer.main_ppo",
    sources: SourceTree | None = None,
    inherited: Mapping[str, str] | None = None,
) -> Script:
    """Return a right script with these changes."""
    trainer = Trainer(module, overrides, (), ranks, Path("/"), exports or {}, nodes, counted, inherited or {})
    return Script(
        trainer=trainer,
        settings=Settings({**RIGHT, **(settings or {})}),
        pin=pin,
        text=text,
        submitted=runtime is not None,
        runtime=runtime or {},
        sources=sources or SourceTree({}),
    )


def found(given: Script) -> list[tuple[str, bool]]:
    return [(finding.code, finding.refused) for finding in findings(given)]


MAIN = "verl.trainer.main_small"


def _verl(main: str = "", **modules: str) -> SourceTree:
    """Return a verl with these texts for its trainer and for other modules; `folder__name` is a module in a folder."""
    root = Path(tempfile.mkdtemp()) / "verl"
    for name, text in {"trainer__main_small": main, **modules}.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        (folder / "__init__.py").touch()
    return SourceTree.at(root.parent, ("verl",))


ASLEEP = _verl(experimental__reward_loop__reward_model="if config.free_cache_engine: ...")
UNREAD = {
    "experimental__reward_loop__reward_loop": 'def score():\n    return {"reward_score": rm_score}',
    "experimental__agent_loop__agent_loop": 'result["reward_extra_info"]',
}
AWAKE = _verl(experimental__reward_loop__reward_model="if free_cache_engine and not enable_resource_pool: ...")
PLAIN_TRAINER, SETTING_TRAINER = _verl("run(config)"), _verl("auto_set_device(config)")
BY_THE_PLATFORM = _verl("run(config)", single_controller__ray__base="ray_resource_name()\nmax_colocate_count: int = 3")
BUDGET = {"data.max_prompt_length": 1024, "data.max_response_length": 3072, f"{ACTOR}.use_dynamic_bsz": True}
PLACE = Path(tempfile.mkdtemp(), "path", "to", "model")
PLACE.mkdir(parents=True)

RIGHT_ONES = {
    "as it is": script(),
    "Megatron": script(MEGATRON),
    "torchrun": script({"trainer.n_gpus_per_node": None, "trainer.nnodes": None}, ranks=8),
    "torchrun on two nodes": script({"trainer.n_gpus_per_node": 8, "trainer.nnodes": 1}, ranks=2, nodes=2),
    "torchrun that counts the NPUs itself": script(ranks=1, counted=False),
    "a rollout of its own": script({"rollout.n_gpus_per_node": 4, "rollout.nnodes": 1}),
    "the same value twice": script(overrides=("a.b=1", "a.b=1")),
    "an empty text": script(overrides=("trainer.default_hdfs_dir=",)),
    "a variable that is exported": script(text="export HCCL_X=1\nHCCL_X=2\n", exports={"HCCL_X": "2"}),
    "a variable of the runtime environment": script(exports={"HCCL_X": "1"}, runtime={"HCCL_X": "1"}),
    "segments without a sleeping engine": script(
        {f"{ROLLOUT}.free_cache_engine": False}, exports={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    ),
    "segments without sleep mode": script(
        {f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False},
        exports={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
    ),
    "kernels of which the documents say nothing": script({"model.use_liger": True}, pin="v0.9.1"),
    "CUDA by default": script({"trainer.device": "cuda"}, overrides=()),
    "a critic that is not trained": script({"critic.ulysses_sequence_parallel_size": 3}),
    "the default path of a reward model that is not used": script(
        {"reward_model.enable": False, "reward_model.model.path": "/none/rm"}
    ),
    "as many NPUs visible as are asked for": script(
        {"trainer.n_gpus_per_node": 2, "trainer.nnodes": 8}, exports={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    ),
    "torchrun that counts the visible NPUs": script(
        ranks=1, counted=False, exports={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    ),
    "a folder that is called so": script(overrides=(f"actor_rollout_ref.model.path={PLACE}",)),
    "a variable of the shell that the script sets rightly": script(
        exports={"HCCL_BUFFSIZE": "200"}, inherited={"HCCL_BUFFSIZE": "many"}
    ),
    "a token budget of the longest sequence": script({**BUDGET, f"{ACTOR}.ppo_max_token_len_per_gpu": 1024}),
    "a reward model that is awake": script(
        {**REWARD_MODEL, "reward.reward_model.rollout.free_cache_engine": False},
        sources=ASLEEP,
    ),
    "a reward model that a function asks": script(
        {**REWARD_MODEL, "reward.custom_reward_function.path": __file__}, sources=_verl(**UNREAD)
    ),
    "a reward model that a later verl wakes up": script(REWARD_MODEL, sources=AWAKE),
    "a device that upstream's trainer sets": script({"trainer.device": "gpu"}, module=MAIN, sources=SETTING_TRAINER),
    "as many virtual NPUs as are asked for": script(inherited={"VIRTUAL_ASCEND": "8"}),
    "virtual NPUs that torchrun counts": script(ranks=1, counted=False, inherited={"VIRTUAL_ASCEND": "2"}),
    "a size that refers to another": script({f"{ROLLOUT}.n": "${other}"}),
    "a CPU for each NPU": script({"ray_kwargs.ray_init.num_cpus": 8}),
    "as many CPUs as verl asks for": script({"ray_kwargs.ray_init.num_cpus": 24}, sources=BY_THE_PLATFORM),
    "CPUs where verl's own trainer reads none": script({"ray_init.num_cpus": 1}),
    "a device of a verl that takes the platform's": script(
        {"trainer.device": "gpu"}, module=MAIN, sources=BY_THE_PLATFORM
    ),
    "CPUs of a trainer without Ray": script({"ray_init.num_cpus": 1}, ranks=8),
    "files that are here": script({"data.train_files": [__file__], "data.val_files": "hub/name"}),
}


@pytest.mark.parametrize("right", RIGHT_ONES.values(), ids=RIGHT_ONES.keys())
def test_nothing_is_found_in_a_right_script(right: Script) -> None:
    assert findings(right) == []


CUDA = ("trainer.device=cuda",)
SEGMENTS = {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:32,expandable_segments:True"}


def refused(title: str, rule: str, settings: Mapping[str, object] | None = None, **more: Any) -> Wrong:
    return title, (script(settings, **more), rule, True)


def warned(title: str, rule: str, settings: Mapping[str, object] | None = None, **more: Any) -> Wrong:
    return title, (script(settings, **more), rule, False)


Wrong = tuple[str, tuple[Script, str, bool]]
WRONG_ONES = dict(
    (
        refused("CUDA by name", "device-setting", {"trainer.device": "cuda"}, overrides=CUDA),
        refused(
            "CUDA by name, added", "device-setting", {"trainer.device": "cuda"}, overrides=("+trainer.device=cuda",)
        ),
        warned("a key twice", "shadowed", overrides=("a.b=1", "++a.b=2")),
        refused("a size without a value", "empty", {"trainer.nnodes": ""}),
        refused("a size of quotes", "empty", {"data.train_batch_size": " "}),
        refused(
            "a device that Ray has nothing of",
            "device-setting",
            {"trainer.device": "gpu"},
            module=MAIN,
            sources=PLAIN_TRAINER,
        ),
        refused(
            "a CPU that verl-npu leaves alone",
            "device-setting",
            {"trainer.device": "cpu"},
            module=MAIN,
            sources=SETTING_TRAINER,
        ),
        warned("a device of a trainer that is not read", "device-setting", {"trainer.device": "gpu"}),
        warned(
            "CUDA by default, and no verl-npu",
            "device-setting",
            {"trainer.device": "cuda"},
            exports={"VERL_NPU": "off"},
            module=MAIN,
            sources=PLAIN_TRAINER,
        ),
        warned("fewer virtual NPUs than Ray is asked for", "visible-devices", inherited={"VIRTUAL_ASCEND": "2"}),
        warned(
            "a visible NPU that there is not",
            "visible-devices",
            {"trainer.n_gpus_per_node": 2, "trainer.nnodes": 8},
            exports={"ASCEND_RT_VISIBLE_DEVICES": "0,7", "VIRTUAL_ASCEND": "2"},
        ),
        refused("a size that is a word", "empty", {f"{ROLLOUT}.n": "many"}),
        refused("steps that are a word", "empty", {"trainer.total_training_steps": "ten"}),
        refused("CPUs that are a word", "empty", {"ray_kwargs.ray_init.num_cpus": "many"}),
        refused("fewer CPUs than NPUs", "ray-cpus", {"ray_kwargs.ray_init.num_cpus": 7}),
        refused(
            "fewer CPUs than verl asks for", "ray-cpus", {"ray_kwargs.ray_init.num_cpus": 23}, sources=BY_THE_PLATFORM
        ),
        refused(
            "fewer CPUs for a recipe that reads them at the root",
            "ray-cpus",
            {"ray_init.num_cpus": 7},
            module="recipe.gkd.main_gkd",
        ),
        warned("data that are not in the tree", "files", {"data.train_files": "none.parquet"}),
        refused("Megatron's sizes", "parallel-sizes", {**MEGATRON, f"{ACTOR}.megatron.context_parallel_size": 3}),
        refused(
            "a rollout", "rollout.ranks", {f"{ROLLOUT}.tensor_model_parallel_size": 3}, module="recipe.dapo.main_dapo"
        ),
        refused(
            "engines that do not divide the NPUs",
            "rollout.ranks",
            {f"{ROLLOUT}.pipeline_model_parallel_size": 3},
            module="verl.trainer.main_ppo_sync",
        ),
        warned("a variable that is not exported", "exports", text="HCCL_CONNECT_TIMEOUT=900\n"),
        warned("a variable that a cluster does not get", "exports", exports={"VLLM_USE_V1": "1"}, runtime={}),
        warned("segments beside a sleeping engine", "rollout.expandable_segments", exports=SEGMENTS),
        warned("kernels that the compiler refuses", "fused-kernels", FUSED),
        warned(
            "the same with Megatron, which has no other way",
            "fused-kernels",
            {**MEGATRON, "actor_rollout_ref.model.use_fused_kernels": True},
        ),
        warned(
            "kernels that NPUs are said not to run",
            "liger-kernel",
            {"actor_rollout_ref.model.use_liger": True},
            pin="796871d7",
        ),
        warned("the same in fine-tuning", "liger-kernel", {"model.use_liger": True}, pin="v0.7.1"),
        warned("a file that is not here", "files", {"data.train_files": ["/none/a", "/none/b"]}),
        refused("weights in a format that garbles them", "required-variables", exports={"VLLM_ASCEND_ENABLE_NZ": "1"}),
        warned("a variable that CANN refuses", "variables", exports={"HCCL_BUFFSIZE": "many"}),
        refused(
            "a switch that ends the import of verl",
            "variables",
            exports={"VERL_NPU_DISABLE": "atention", "VERL_NPU_STRICT": "1"},
        ),
        warned(
            "the attention that the quickstarts export", "variables", exports={"VLLM_ATTENTION_BACKEND": "XFORMERS"}
        ),
        warned("a switch that only warns", "variables", exports={"VERL_NPU_DISABLE": "atention"}),
        refused("a wrong strict", "variables", exports={"VERL_NPU_STRICT": "ja"}),
        warned("a wrong strict that nothing reads", "variables", exports={"VERL_NPU_STRICT": "ja", "VERL_NPU": "OFF"}),
        refused("a time that Ray's placement reads", "variables", exports={"VERL_NPU_PLACEMENT_TIMEOUT": "soon"}),
        warned(
            "a time that no placement reads",
            "variables",
            {"trainer.n_gpus_per_node": None},
            exports={"VERL_NPU_PLACEMENT_TIMEOUT": "soon"},
            ranks=8,
        ),
        refused(
            "a check of a weight sync that there is",
            "variables",
            exports={"VERL_NPU_WEIGHT_SYNC_CHECK": "all"},
            module="recipe.one_step_off_policy.main_ppo",
        ),
        refused(
            "a check of the weight sync of separate NPUs",
            "variables",
            {"trainer.use_v1": True, "trainer.v1.trainer_mode": "separate_async"},
            exports={"VERL_NPU_WEIGHT_SYNC_CHECK": "all"},
        ),
        warned(
            "a check of a weight sync that there is not", "variables", exports={"VERL_NPU_WEIGHT_SYNC_CHECK": "all"}
        ),
        warned("a budget of batches that are not dynamic", "variables", exports={"VERL_NPU_TOKEN_BUDGET": "yes"}),
        warned("a reward model that nothing wakes up", "reward-model", REWARD_MODEL, sources=ASLEEP),
        refused("a reward model whose scores verl cannot read", "reward-model", REWARD_MODEL, sources=_verl(**UNREAD)),
        warned(
            "a task queue at which graphs fail",
            "task-queue",
            {f"{ROLLOUT}.enforce_eager": False},
            exports={"TASK_QUEUE_ENABLE": "2"},
        ),
        warned(
            "log-probabilities without temperature",
            "logprobs-mode",
            {f"{ROLLOUT}.temperature": 0.7, f"{ROLLOUT}.calculate_log_probs": True},
        ),
        warned("a variable of the user's shell", "variables", inherited={"HCCL_BUFFSIZE": "abc"}),
        warned("an address that is none", "variables", exports={"HCCL_IF_IP": "host"}),
        warned(
            "fewer NPUs visible than Ray is asked for", "visible-devices", exports={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
        ),
        refused(
            "fewer NPUs visible than torchrun starts processes for",
            "visible-devices",
            exports={"ASCEND_RT_VISIBLE_DEVICES": "0,1"},
            ranks=8,
        ),
        warned(
            "an NPU twice",
            "visible-devices",
            {"trainer.n_gpus_per_node": 2, "trainer.nnodes": 8},
            exports={"ASCEND_RT_VISIBLE_DEVICES": "1,1"},
        ),
        refused(
            "a path to fill in, in the tree", "placeholders", overrides=("actor_rollout_ref.model.path=PATH/TO/Qwen",)
        ),
        warned(
            "a path to fill in, on the cluster",
            "placeholders",
            overrides=("data.train_files=['/path/to/train.parquet']",),
        ),
        warned(
            "a script that names no model",
            "placeholders",
            {"actor_rollout_ref.model.path": "~/models/deepseek-llm-7b-chat"},
        ),
        warned(
            "an interface to fill in", "placeholders", exports={"HCCL_SOCKET_IFNAME": "SOCKET IFNAME FOR CURRENT NODE"}
        ),
        warned(
            "a path to fill in where the job writes",
            "placeholders",
            overrides=("trainer.default_local_dir=path/to/checkpoints",),
        ),
        warned(
            "weights in a format that wins over the variable",
            "rollout.weight_format",
            {f"{ROLLOUT}.engine_kwargs.vllm.additional_config": {"weight_nz_mode": 1}},
        ),
        warned(
            "a token budget below the longest sequence",
            "token-budget",
            {**BUDGET, f"{ACTOR}.ppo_max_token_len_per_gpu": 1023},
        ),
        warned(
            "a section that only another program reads",
            "unread",
            overrides=("old.path=a",),
            sources=_verl(other="@hydra.main()\ndef main(config):\n    config.old"),
        ),
        refused("a token budget of nothing", "token-budget", {**BUDGET, f"{ACTOR}.ppo_max_token_len_per_gpu": 0}),
        warned(
            "a proof that SGLang's engines cannot give",
            "weight-proof",
            {f"{ROLLOUT}.name": "sglang"},
            exports={"VERL_NPU_WEIGHT_SYNC_CHECK": "engine"},
            module="recipe.one_step_off_policy.main_ppo",
        ),
        refused("a variable of verl-npu", "variables", exports={"VERL_NPU_STRICT": "yes"}),
        refused(
            "a key that MindSpeed has not",
            "mindspeed-key-or-type",
            MEGATRON,
            overrides=("actor_rollout_ref.actor.megatron.override_transformer_config.no_such_key=1",),
        ),
    )
)


@pytest.mark.parametrize(("wrong", "rule", "refused"), WRONG_ONES.values(), ids=WRONG_ONES.keys())
def test_a_rule_finds_what_is_wrong_and_no_other_does(wrong: Script, rule: str, refused: bool) -> None:
    (one,) = findings(wrong)
    assert (one.code, one.refused) == (rule, refused)
    assert all(text and "\n" not in text for text in (one.subject, one.found, one.why, one.fix))


def test_every_rule_has_a_wrong_script() -> None:
    firing = {rule.code for rule in RULES for wrong, _, _ in WRONG_ONES.values() if list(rule.ask(wrong))}
    # Rules that need a model, an engine or a verl tree are tested below, and with the rollout's own rules.
    assert firing == {rule.code for rule in RULES} - {
        "batches",
        "choices",
        "validation",
        "rollout.heads",
        "rollout.additional_config",
        "rollout.rl_config",
        "rollout.engine_arguments",
        "rollout.unread_parallelism",
        "rollout.sizes_in_one_word",
        "imports",
        "ray-collective-hccl",
        "trainer-mode",
        "successor",
    }


@pytest.mark.parametrize(
    ("exports", "said"),
    [
        ({}, "uses smaller blocks"),
        ({"VERL_NPU_DISABLE": "fused_kernels"}, "fails with `ub overflow`"),
    ],
)
def test_what_becomes_of_kernels_that_do_not_compile_depends_on_the_feature_that_fixes_them(
    exports: Mapping[str, str], said: str
) -> None:
    (found,) = (each for each in findings(script(FUSED, exports=exports)) if each.code == "fused-kernels")
    assert "efficient_entropy_kernel_general_mainloop" in found.found
    assert said in found.why


def test_the_fused_loss_without_kernels_is_no_finding() -> None:
    assert findings(script({**FUSED, "actor_rollout_ref.model.fused_kernel_options.impl_backend": "torch"})) == []


def test_refusals_come_first() -> None:
    both = script({f"{ROLLOUT}.n": "many"}, overrides=("a.b=1", "a.b=2"))
    assert found(both) == [("empty", True), ("shadowed", False)]


# Findings that depend on the source of the script's verl, or on the installed packages.

SCHEMA = "class RolloutConfig:\n    name: str\n    mode: str\n"


@pytest.fixture
def verl(tmp_path: Path) -> Callable[[str, str], SourceTree]:
    """Return a function that makes a verl with these texts in its rollout's schema and in its rollout."""

    def made(schema: str, rollout: str = "") -> SourceTree:
        for module, text in (("config/rollout.py", schema), ("rollout/engine.py", rollout)):
            file = tmp_path / "verl/workers" / module
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "verl/__init__.py").touch()
        return SourceTree.at(tmp_path, ("verl",))

    return made


@pytest.mark.parametrize(
    ("schema", "settings", "refused"),
    [
        ("", {}, True),
        ("", {f"{ROLLOUT}.free_cache_engine": False}, False),
        (SCHEMA, {f"{ROLLOUT}.mode": "async", f"{ROLLOUT}.free_cache_engine": False}, True),
        (SCHEMA, {f"{ROLLOUT}.mode": "async", f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False}, False),
        (f"{SCHEMA}    enable_sleep_mode: bool = True\n", {f"{ROLLOUT}.mode": "async"}, True),
        (f"{SCHEMA}    enable_sleep_mode: bool = True\n", {f"{ROLLOUT}.enable_sleep_mode": False}, False),
    ],
)
def test_segments_are_refused_where_the_scripts_verl_builds_an_engine_that_sleeps(
    verl: Callable[..., SourceTree], schema: str, settings: Mapping[str, object], refused: bool
) -> None:
    given = script({f"{ROLLOUT}.mode": "async", **settings}, exports=SEGMENTS, sources=verl(schema))
    assert found(given) == ([("rollout.expandable_segments", True)] if refused else [])


def test_a_recipe_may_have_an_engine_of_its_own(verl: Callable[..., SourceTree]) -> None:
    given = script(exports=SEGMENTS, sources=verl(""), module="recipe.r1_ascend.main_ppo")
    assert found(given) == [("rollout.expandable_segments", False)]


def test_a_way_to_divide_is_refused_that_the_scripts_verl_passes_over(verl: Callable[..., SourceTree]) -> None:
    settings = {f"{ROLLOUT}.data_parallel_size": 2, f"{ROLLOUT}.mode": "async"}
    assert found(script(settings, sources=verl("", "config.data_parallel_size"))) == []
    assert found(script(settings, sources=verl(""))) == [("rollout.unread_parallelism", True)]
    off = {"VERL_NPU_DISABLE": "attention, rollout"}
    assert found(script(settings, sources=verl(""), exports=off)) == []


def test_sizes_are_refused_that_the_scripts_verl_hands_over_as_one_word(
    tmp_path: Path, verl: Callable[..., SourceTree]
) -> None:
    settings = {f"{ROLLOUT}.mode": "async", f"{ROLLOUT}.cudagraph_capture_sizes": [8, 64]}
    sources = verl(SCHEMA)
    assert found(script(settings, sources=sources)) == []
    server = tmp_path / "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
    server.parent.mkdir()
    server.write_text("for k, v in args.items():\n    words += [f'--{k}', str(v)]\n")
    given = script(settings, sources=SourceTree.at(tmp_path, ("verl",)))
    assert found(given) == [("rollout.sizes_in_one_word", True)]


def test_an_argument_is_refused_that_the_installed_vllm_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, text in (("engine/arg_utils.py", "max_num_seqs = 1"), ("entrypoints/openai/cli_args.py", "")):
        (tmp_path / "vllm" / module).parent.mkdir(parents=True)
        (tmp_path / "vllm" / module).write_text(text)
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tmp_path, ("vllm",)))
    assert found(script({f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs": 8})) == []
    assert found(script({f"{ROLLOUT}.engine_kwargs.vllm.no_such": 8})) == [("rollout.engine_arguments", True)]


@pytest.mark.parametrize(
    ("trainer", "refused"),
    [
        ("from verl.utils import there, gone", True),
        ("from .beside import Trainer", True),
        ("from verl.utils import there", False),
        ("try:\n    from verl.utils import gone\nexcept ImportError:\n    gone = None", False),
        ("def main():\n    from verl.utils import gone", False),
    ],
)
def test_a_trainer_is_refused_that_imports_what_its_verl_has_not(
    tmp_path: Path, verl: Callable[..., SourceTree], trainer: str, refused: bool
) -> None:
    verl(SCHEMA)
    files = {"verl/utils.py": "there = 1", "recipe/mine/main.py": trainer, "recipe/mine/beside.py": "import verl.gone"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = script(module="recipe.mine.main", sources=SourceTree.at(tmp_path, ("verl", "recipe")))
    assert found(given) == ([("imports", True)] if refused else [])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mine", "import ray.util.collective as cc\ncc.init_collective_group(2, 0, 'hccl')", True),
        (
            "recipe.mine",
            "from ray.util.collective import collective\ncollective.create_collective_group([], 0, [])",
            True,
        ),
        ("recipe.mine", "from verl.utils import create_collective_group\ncreate_collective_group()", False),
        ("recipe.one_step_off_policy", "import ray.util.collective as cc\ncc.init_collective_group(2, 0)", False),
    ],
)
def test_a_forks_own_group_of_rays_is_said(
    tmp_path: Path, verl: Callable[..., SourceTree], name: str, text: str, said: bool
) -> None:
    verl(SCHEMA)
    folder = tmp_path.joinpath(*name.split("."))
    folder.mkdir(parents=True)
    for file, content in {"main.py": "", "workers.py": text}.items():
        (folder / file).write_text(content)
    given = script(module=f"{name}.main", sources=SourceTree.at(tmp_path, ("verl", "recipe")))
    given = replace(given, trainer=replace(given.trainer, folder=tmp_path))
    assert found(given) == ([("ray-collective-hccl", False)] if said else [])
