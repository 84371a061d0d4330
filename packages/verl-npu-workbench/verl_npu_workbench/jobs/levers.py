"""The levers of a job's speed, each with the figure that somebody published for it.

A lever is a setting or a variable. `verl-npu lint` prints advice about each lever that is set the slower way. Advice
is never a refusal, because each figure is from another job. The table has no figure without a source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from verl_npu import environment
from verl_npu.ascend.variables import NZ, NZ_KEY
from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _

from .keys import BATCH, ENGINE, MINI_BATCH, MODE, NPUS, PATH, ROLLOUT, SYNC_STEP, is_megatron, size
from .modes import trainers
from .rules import task_queue_of_engine
from .script import Script, is_applied
from .settings import Settings, override, written

_VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
_EAGER, _GRAPHS = f"{ROLLOUT}.enforce_eager", f"{_VLLM}.compilation_config.cudagraph_mode"
_ADDITIONAL = f"{_VLLM}.additional_config"
_BINDING = f"{_ADDITIONAL}.enable_cpu_binding"
_UNBOUND = "v0.7.1"
"""The pin whose vllm-ascend (0.13) knows `enable_cpu_binding`, but does not enable it. Releases from 0.18 on do."""
_LINEAR_ATTENTION = re.compile(r"qwen3[._-]?(5|next)", re.IGNORECASE)
_EXAMPLES = "verl 1dda039b: docs/ascend_tutorial/model_support/examples"

Values = Mapping[str, object]
"""Values by the names of settings or variables. None means that the name is not set, or is to be removed."""
Answer = tuple[Values, Values] | None
"""What a script sets, and the change to try. None if there is nothing to advise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A setting that is known to make jobs faster or slower."""

    code: str
    ask: Callable[[Script], Answer]
    figure: str
    conditions: str
    """The model, the machine, and the versions of the measurement, and what to watch."""
    source: tuple[str, ...]
    fix: str = ""
    """What to do if no setting makes the change."""


def _graphs(script: Script) -> Answer:
    server = script.sources.read("verl.workers.rollout.vllm_rollout.vllm_async_server") or b""
    # Only these verls pass FULL_DECODE_ONLY on, and vllm-ascend#5200 saw captures fail beside FLASHCOMM1.
    possible = b"cudagraph_mode" in server and script.environ.get("VLLM_ASCEND_ENABLE_FLASHCOMM1") != "1"
    if not possible or script.settings.text(ENGINE) != "vllm" or not script.settings.truth(_EAGER):
        return None
    variable, level = task_queue_of_engine(script)
    lowered = {variable: "1"} if level == "2" else {}
    return {_EAGER: True}, {_EAGER: False, _GRAPHS: "FULL_DECODE_ONLY", **lowered}


def _fused_ops(script: Script) -> Answer:
    name = environment.DISABLE.name
    if not is_applied(script, "") or is_applied(script, "fused_ops") or is_megatron(script.settings):
        return None
    left_out = [each for each in script.environ[name].split(",") if each.strip() != "fused_ops"]
    return {name: script.environ[name]}, {name: ",".join(left_out) or None}


def _gated_delta_rule(script: Script) -> Answer:
    path = script.settings.text(PATH)
    return ({PATH: path}, {}) if _LINEAR_ATTENTION.search(path) and not is_megatron(script.settings) else None


def _cpu_binding(script: Script) -> Answer:
    asked = script.settings.get(_BINDING)
    # torch_npu binds, too, if this variable asks for it.
    unbound = script.pin == _UNBOUND and script.environ.get("CPU_AFFINITY_CONF", "0") == "0"
    advised = script.settings.text(ENGINE) == "vllm" and (asked is False or (asked is None and unbound))
    return ({_BINDING: asked}, {_BINDING: True}) if advised else None


def _asynchrony(script: Script) -> Answer:
    settings = script.settings
    batch, mini_batch = settings.whole(BATCH), size(settings, MINI_BATCH)
    v1 = script.trainer.module == "verl.trainer.main_ppo" and settings.truth("trainer.use_v1")
    if not v1 or settings.text(MODE) != "sync" or "separate_async" not in trainers(script.sources):
        return None
    change: Values = {
        MODE: "separate_async",
        SYNC_STEP: batch // mini_batch,
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": settings.whole(NPUS),
        # verl registers its HCCL engine by this name, too.
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
    }
    return ({MODE: "sync"}, change) if batch and batch % mini_batch == 0 else None


def _set_to(asked: Mapping[str, str]) -> Callable[[Script], Answer]:
    """Return a function that finds the variables and the settings that have these values. `asked` gives the values in
    lower case by the name of a variable or by the pattern of a setting. The change removes what was found."""

    def ask(script: Script) -> Answer:
        values = {key: (script.settings.get(key), name) for name in asked for key in script.settings.matching(name)}
        values |= {name: (script.environ[name], name) for name in asked if name in script.environ}
        found = {key: value for key, (value, name) in values.items() if str(value).lower() == asked[name]}
        return (found, dict.fromkeys(found)) if found else None

    return ask


LEVERS = (
    Lever(
        code="lever.graphs",
        ask=_graphs,
        figure=_("graphs made the engine 15 to 20 % faster, on average"),
        conditions=_(
            "Qwen3-32B, 4 Atlas 800T A3, vllm-ascend 0.18, where eager mode also loses a fused operator; "
            "in one job, CANN refused such a graph (EE1023, verl-project/verl#7959)"
        ),
        source=(f"{_EXAMPLES}/gspo_optimization_practice.md", "verl-project/verl#6948"),
    ),
    Lever(
        code="lever.fused-ops",
        ask=_fused_ops,
        figure=_(
            "fused norms and rotary embeddings made a step 15.25 % shorter, and fused experts made training over 20 % "
            "faster"
        ),
        conditions=_(
            "fine-tuning Qwen3 with VeOmni, and Qwen3-MoE with verl's FSDP; rotary embeddings alone 5 % (Qwen3-VL-8B, "
            "8 Ascend 910B); over 7 % of the throughput of GRPO with siiRL (Qwen2.5-7B)"
        ),
        source=(
            "ByteDance-Seed/VeOmni#308",
            "ByteDance-Seed/VeOmni#323",
            "verl-project/verl#4406",
            "sii-research/siiRL#43",
        ),
    ),
    Lever(
        code="lever.gated-delta-rule",
        ask=_gated_delta_rule,
        figure=_("training was about 33 % slower where torch code computed the gated delta rule"),
        conditions=_("Qwen3.5 with twinkle and MindSpeed's Triton kernels; transformers falls back without an error"),
        source=("modelscope/twinkle#204",),
        fix=_("run `verl-npu check MODEL` in the job's environment, which says what computes it there"),
    ),
    Lever(
        code="lever.cpu-binding",
        ask=_cpu_binding,
        figure=_("binding gave 18 % more tokens per second in one measurement, and 1 % in another"),
        conditions=_(
            "1 request at a time: Qwen3-8B, tensor parallelism 8, Atlas 800I A2 (18 %); a dense model (1 %); only on "
            "hosts with Arm processors"
        ),
        source=("vllm-project/vllm-ascend#6966", "vllm-project/vllm-ascend#11109"),
    ),
    Lever(
        code="lever.asynchrony",
        ask=_asynchrony,
        figure=_("an asynchronous trainer made 1.72 times as many steps"),
        conditions=_(
            "GRPO of Qwen3-4B with vime on A3, with separate NPUs for trainer and servers in both runs; on four nodes "
            "of GPUs, 150 steps took 22.79 h with verl's sync and 14.10 h with separate_async (Qwen3.5-35B-A3B); the "
            "servers need NPUs of their own, and answers may be older than the policy"
        ),
        source=("vllm-project/vime#358", "verl 1dda039b: docs/advance/v1_async_trainer.md"),
    ),
    Lever(
        code="lever.forced-nz",
        ask=_set_to({NZ.name: "2", rf"{re.escape(_ADDITIONAL)}\.{NZ_KEY}": "2"}),
        figure=_("a token took 10.8 % longer"),
        conditions=_("a dense model with graphs and 1 request at a time"),
        source=("vllm-project/vllm-ascend#11109",),
    ),
    Lever(
        code="lever.no-effect",
        ask=_set_to(
            {
                "VLLM_ASCEND_BALANCE_SCHEDULING": "1",
                "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE": "1",
                rf"{re.escape(_VLLM)}\.block_size": "128",
                rf"{re.escape(_ADDITIONAL)}\..*enable_static_kernel": "true",
            }
        ),
        figure=_("each of these changed the time per token by 0.0 %"),
        conditions=_("a dense model with graphs and 1 or 4 requests at a time; a full batch may differ"),
        source=("vllm-project/vllm-ascend#11109",),
    ),
)


def advice(script: Script) -> Iterator[Finding]:
    """Yield advice about each performance setting that a script sets to its slower value."""
    for lever in LEVERS:
        answer = lever.ask(script)
        if answer is not None:
            found, change = answer
            yield Finding(
                lever.code,
                Severity.ADVICE,
                lever.figure,
                subject=_(", ").join(
                    f"{name}={value}" if value is not None else _("{name} (not set)").format(name=name)
                    for name, value in found.items()
                ),
                why=lever.conditions,
                fix=lever.fix or _fix(change, script.settings),
                source=lever.source,
            )


def _fix(change: Values, settings: Settings) -> str:
    words: dict[str, list[str]] = {_("set {words}"): [], _("export {words}"): [], _("remove {words}"): []}
    put, export, remove = words.values()
    for name, value in change.items():
        if value is None:
            remove.append(name)
        elif name.isupper():
            export.append(f"{name}={value}")
        else:
            put.append(f"{name}={written(value)}" if name in settings else override(name, value))
    return _(", and ").join(each.format(words=" ".join(names)) for each, names in words.items() if names)
