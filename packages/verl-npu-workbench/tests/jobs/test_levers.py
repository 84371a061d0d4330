"""Each lever is advised where it is set the slower way, and nowhere else; no advice makes `lint` find a fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from verl_npu_workbench.jobs.levers import LEVERS, advice
from verl_npu_workbench.jobs.rules import findings
from verl_npu_workbench.jobs.script import Script
from verl_npu_workbench.jobs.settings import Settings

from verl_npu.findings import Severity

from .test_rules import ACTOR, MEGATRON, RIGHT_ONES, ROLLOUT, _verl, script

MODEL = "actor_rollout_ref.model.path"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
BINDING = f"{VLLM}.additional_config.enable_cpu_binding"
SERVER = {"workers__rollout__vllm_rollout__vllm_async_server": 'compilation["cudagraph_mode"]'}
GRAPHS, EAGER_ONLY = _verl(**SERVER), _verl()
OWN_QUEUE = _verl(**SERVER, plugin__platform__platform_npu="VLLM_ASCEND_TASK_QUEUE_ENABLE")
V1 = _verl(trainer__ppo__v1__separate='@register_trainer("separate_async")\nclass Separate: ...')
EAGER = {f"{ROLLOUT}.enforce_eager": True}
SYNC = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    "trainer.v1.separate_async.parameter_sync_step": 1,
    f"{ACTOR}.ppo_mini_batch_size": 16,
}
FULL = "++" + f"{VLLM}.compilation_config.cudagraph_mode='FULL_DECODE_ONLY'"
NZ = "VLLM_ASCEND_ENABLE_NZ"

ADVISED = {
    "graphs": (script(EAGER, sources=GRAPHS), "graphs", f"set {ROLLOUT}.enforce_eager=False {FULL}"),
    "graphs, and the level at which they fail": (
        script(EAGER, sources=GRAPHS, exports={"TASK_QUEUE_ENABLE": "2"}),
        "graphs",
        f"set {ROLLOUT}.enforce_eager=False {FULL}, and export TASK_QUEUE_ENABLE=1",
    ),
    "graphs, and the engine's own level": (
        script(EAGER, sources=OWN_QUEUE, exports={"TASK_QUEUE_ENABLE": "2"}),
        "graphs",
        f"set {ROLLOUT}.enforce_eager=False {FULL}, and export VLLM_ASCEND_TASK_QUEUE_ENABLE=1",
    ),
    "fused operators": (script(exports={"VERL_NPU_DISABLE": "fused_ops"}), "fused-ops", "remove VERL_NPU_DISABLE"),
    "fused operators beside another feature": (
        script(exports={"VERL_NPU_DISABLE": "fleet, fused_ops"}),
        "fused-ops",
        "export VERL_NPU_DISABLE=fleet",
    ),
    "linear attention": (script({MODEL: "Qwen/Qwen3.5-9B"}), "gated-delta-rule", "run `verl-npu check MODEL`"),
    "linear attention, as a folder": (script({MODEL: "/m/Qwen3-Next-80B-A3B"}), "gated-delta-rule", "verl-npu check"),
    "binding that the script turns off": (script({BINDING: False}), "cpu-binding", f"set {BINDING}=True"),
    "binding that the engine leaves off": (script(pin="v0.7.1"), "cpu-binding", f"set ++{BINDING}=True"),
    "asynchrony": (script(SYNC, sources=V1), "asynchrony", "parameter_sync_step=4 "),
    "asynchrony, with verl's name for HCCL": (script(SYNC, sources=V1), "asynchrony", "engine.backend='nccl'"),
    "a forced format": (script(exports={NZ: "2"}), "forced-nz", f"remove {NZ}"),
    "a forced format in the engine's configuration": (
        script({f"{VLLM}.additional_config.weight_nz_mode": 2}),
        "forced-nz",
        f"remove {VLLM}.additional_config.weight_nz_mode",
    ),
    "two without an effect": (
        script({f"{VLLM}.block_size": 128}, exports={"VLLM_ASCEND_BALANCE_SCHEDULING": "1"}),
        "no-effect",
        f"remove {VLLM}.block_size VLLM_ASCEND_BALANCE_SCHEDULING",
    ),
    "a kernel without an effect": (
        script({f"{VLLM}.additional_config.npugraph_ex_config.enable_static_kernel": True}),
        "no-effect",
        "enable_static_kernel",
    ),
}
SILENT = {
    **RIGHT_ONES,
    "graphs that are on": script({f"{ROLLOUT}.enforce_eager": False}, sources=GRAPHS),
    "a verl that does not pass the mode on": script(EAGER, sources=EAGER_ONLY),
    "eager mode in SGLang": script({**EAGER, f"{ROLLOUT}.name": "sglang"}, sources=GRAPHS),
    "a fusion beside which captures fail": script(
        EAGER, sources=GRAPHS, exports={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
    ),
    "a job without verl-npu": script(exports={"VERL_NPU": "off", "VERL_NPU_DISABLE": "fused_ops"}),
    "Megatron, which has operators of its own": script(MEGATRON, exports={"VERL_NPU_DISABLE": "fused_ops"}),
    "binding by torch_npu": script(pin="v0.7.1", exports={"CPU_AFFINITY_CONF": "1"}),
    "binding by the engine": script({BINDING: True}, pin="v0.7.1"),
    "an asynchronous mode": script({**SYNC, "trainer.v1.trainer_mode": "separate_async"}, sources=V1),
    "a batch that mini-batches do not fill": script({**SYNC, f"{ACTOR}.ppo_mini_batch_size": 48}, sources=V1),
    "a verl without the asynchronous mode": script(SYNC, sources=EAGER_ONLY),
    "another block size": script({f"{VLLM}.block_size": 64}, exports={"VLLM_ASCEND_BALANCE_SCHEDULING": "0"}),
}


@pytest.mark.parametrize(("given", "code", "fix"), ADVISED.values(), ids=ADVISED.keys())
def test_a_lever_is_advised_where_it_is_set_the_slower_way(given: Script, code: str, fix: str) -> None:
    (found,) = advice(given)
    assert (found.code, found.severity, found.refused) == (f"lever.{code}", Severity.ADVICE, False)
    assert fix in found.fix
    assert found.source


@pytest.mark.parametrize("given", SILENT.values(), ids=SILENT.keys())
def test_nothing_is_advised_elsewhere(given: Script) -> None:
    assert list(advice(given)) == []


def changed(given: Script, change: Mapping[str, object]) -> Script:
    """Return the script with a change made."""
    exports = {name: str(value) for name, value in {**given.environ, **change}.items() if name.isupper() and value}
    after = {name: value for name, value in change.items() if not name.isupper()}
    values = {name: value for name, value in given.settings.changed(after).values.items() if value is not None}
    return replace(given, settings=Settings(values), trainer=replace(given.trainer, exports=exports))


@pytest.mark.parametrize(("given", "code", "fix"), ADVISED.values(), ids=ADVISED.keys())
def test_advice_that_is_followed_ends_and_makes_no_fault(given: Script, code: str, fix: str) -> None:
    (lever,) = (each for each in LEVERS if each.code == f"lever.{code}")
    answer = lever.ask(given)
    assert answer is not None
    after = changed(given, answer[1])
    assert list(advice(after)) == ([] if answer[1] else list(advice(given)))
    before = {(each.code, each.subject) for each in findings(given)}
    assert [each for each in findings(after) if (each.code, each.subject) not in before] == []


def test_every_figure_has_a_source_and_every_lever_is_tried() -> None:
    assert {lever.code for lever in LEVERS} == {f"lever.{code}" for _script, code, _fix in ADVISED.values()}
    thread = re.compile(r"[\w-]+/[\w-]+#\d+|verl [0-9a-f]{8}: docs/\S+\.md")
    assert [each for lever in LEVERS for each in lever.source if not thread.fullmatch(each)] == []
    assert [lever.code for lever in LEVERS if not re.search(r"\d", lever.figure) or not lever.source] == []
